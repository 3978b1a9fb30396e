"""`dfx-agent --help` says what each verb does and imports none of them."""

import subprocess
import sys

import pytest

from dfx_agent.commands import build_parser, verb_names

LOOK = """
import sys
from dfx_agent.commands import main, verb_names
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
loaded = [name for name in verb_names() if f"dfx_agent.commands.{name}" in sys.modules]
sys.exit(f"imported: {loaded}" if loaded or "pydantic" in sys.modules else 0)
"""


def test_the_overview_imports_no_verb():
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"\n    {name}" in done.stdout for name in verb_names())


def test_the_overview_says_what_the_verbs_themselves_say():
    overview, whole = build_parser(is_overview=True), build_parser()
    assert overview.format_help() == whole.format_help()
    assert all(overview.format_help().count(f"\n    {name}") == 1 for name in ("run", "serve"))


@pytest.mark.parametrize("verb", ["", *verb_names()])
def test_help_fits_in_80_columns(verb, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        build_parser(verb, is_overview=not verb).parse_args([*filter(None, [verb]), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) > 5
