"""Ctrl-C at any time of a verb: no traceback, exit code 130."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dfx_agent
from dfx_agent import commands

_ROOT = Path(dfx_agent.__file__).parents[1]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_while_a_verb_is_imported_ends_quietly(monkeypatch, capsys):
    monkeypatch.setattr(commands, "import_module", _interrupt)
    assert commands.main(["backtest", "a.jsonl"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("module", ["dfx_agent.base.log", "dfx_agent.commands.backtest"])
def test_ctrl_c_while_python_imports_us_ends_quietly(tmp_path, module):
    """A finder that stands in for a person who presses Ctrl-C at this import."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "dfx_agent", "backtest", "a.jsonl"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{_ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
