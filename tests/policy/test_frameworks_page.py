"""The table in docs/frameworks.md has what the code has, and the README has its first group."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from dfx_agent.catalogue import native

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = ROOT / "dfx_agent" / "shim" / "adapters"
LEVELS = ("trained for real", "real classes called", "call shapes only", "name map only")


@dataclass(frozen=True)
class Row:
    framework: str
    code: frozenset[str]
    level: str
    version: str
    tests: tuple[str, ...]


def rows() -> list[Row]:
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    section = page.partition("## How far each framework is tested")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    found = []
    for line in lines:
        name, code, level, version, _way, tests = (c.strip() for c in line.strip("|").split("|"))
        of_code = frozenset(re.findall(r"`(\w+)`", code))
        found.append(Row(name, of_code, level, version, tuple(re.findall(r"`([^`]+)`", tests))))
    return found


def adapters() -> set[str]:
    """Adapters of frameworks and trainers; trackers and launchers have tables of their own."""
    found = set()
    for path in ADAPTERS.glob("[!_]*.py"):
        kinds = [
            node.value.value
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "KIND"
            and isinstance(node.value, ast.Constant)
        ]
        if kinds not in (["tracker"], ["launcher"]):
            found.add(path.stem)
    return found


def test_the_table_has_every_adapter_and_every_name_map_once() -> None:
    named = [name for row in rows() for name in row.code]
    assert len(named) == len(set(named))
    assert set(named) == adapters() | set(native.frameworks())


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.framework)
def test_a_level_is_one_of_four_and_says_what_it_was_tried_with(row: Row) -> None:
    assert row.level in LEVELS
    assert (row.level == "name map only") == (not row.code & adapters())
    assert row.version or row.level == "name map only"
    assert row.tests
    assert [name for name in row.tests if not (ROOT / name).is_file()] == []
    if row.level not in {"call shapes only", "name map only"}:
        assert any(name.startswith("tests/frameworks/") for name in row.tests)


def test_versions_from_the_index_are_those_that_are_installed() -> None:
    constraints = (ROOT / "constraints-frameworks.txt").read_text(encoding="utf-8")
    pinned = set(re.findall(r"==(\S+)", constraints))
    reported = {found for row in rows() if row.version.startswith("PyPI")
            for found in re.findall(r"\d+\.\d+\.\d+", row.version)}  # fmt: skip
    assert reported
    assert reported <= pinned


def test_readme_names_the_frameworks_that_are_trained_for_real() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.search(r"Tests train with these frameworks under the agent: (.+?)\. ", readme)
    assert named is not None
    assert named[1].split(", ") == [r.framework for r in rows() if r.level == LEVELS[0]]
    assert "docs/frameworks.md#how-far-each-framework-is-tested" in readme
