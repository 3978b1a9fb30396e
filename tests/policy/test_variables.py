"""A variable of the guest is declared once, in wire/variables.py, and stands in the settings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dfx_agent.wire import variables

ROOT = Path(__file__).resolve().parents[2]
DECLARED_IN = ROOT / "dfx_agent" / "wire" / "variables.py"
NAME = re.compile(r"DFX_[A-Z0-9_]*")
SETTINGS = ROOT / "docs" / "reference" / "settings.md"


def spelled(source: str) -> list[str]:
    """Names of variables that code spells, whole or as the begin of a text that is put together."""
    tree = ast.parse(source)
    begins = {
        id(node.values[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) and node.values
    }
    texts = [
        (node.value, id(node) in begins)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [t for t, is_begin in texts if NAME.fullmatch(t) or (is_begin and NAME.match(t))]


@pytest.mark.parametrize(
    "source",
    [
        'os.environ.get("DFX_RUN")',
        'os.environ["DFX_RUN"]',
        'name = "DFX_RUN"',
        'os.getenv(f"DFX_{name.upper()}")',
        'os.environ.get("DFX_" + name)',
    ],
)
def test_what_would_be_found(source: str) -> None:
    assert len(spelled(source)) == 1


@pytest.mark.parametrize("source", ['"""$DFX_RUN, else it."""', 'f"set DFX_DIR to {folder}"'])
def test_what_may_be_said(source: str) -> None:
    assert spelled(source) == []


@pytest.mark.parametrize("part", ["shim", "wire"])
def test_the_guest_spells_no_variable_anywhere_else(part: str) -> None:
    files = [p for p in (ROOT / "dfx_agent" / part).rglob("*.py") if p != DECLARED_IN]
    found = {str(p.relative_to(ROOT)): spelled(p.read_text(encoding="utf-8")) for p in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_every_variable_that_is_declared_is_listed() -> None:
    declared = [v for v in vars(variables).values() if isinstance(v, variables.Variable)]
    assert list(variables.ALL) == declared
    assert len({variable.name for variable in declared}) == len(declared)


def test_the_page_of_settings_says_what_is_declared() -> None:
    _, _, part = SETTINGS.read_text(encoding="utf-8").partition("\n## The guest\n")
    rows = [line for line in part.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert rows == [f"| `{v.name}` | {v.meaning} |" for v in variables.ALL]
