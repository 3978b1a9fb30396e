"""Mutants: what is changed, that the change is in force, and that a test is told from none."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.mutations import mutated, mutations, with_hits

ROOT = Path(__file__).resolve().parents[3]


def changes(source: str) -> list[str]:
    """Each mutant of a program, as a program."""
    return [ast.unparse(mutated(source, mutation.index)) for mutation in mutations(source)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a == b", ["a != b"]),
        ("a < b < c", ["a <= b < c", "a >= b < c", "a < b <= c", "a < b >= c"]),
        ("a and b", ["a or b", "True and b", "a and True"]),
        ("a or b", ["a and b", "False or b", "a or False"]),
        ("a + b", ["a - b"]),
        ("a -= b", ["a += b"]),
        ("not a", ["not not a"]),
        ("x = 1", ["x = 2"]),
        ("x = 0.05", ["x = 0.1"]),
        ("x = True", ["x = False"]),
        ("min(a, b)", ["None", "max(a, b)"]),
        ("zip(a, b, strict=True)", ["None"]),
        ("x = a if b else c", ["x = a if not b else c"]),
        ("x = [a for a in b if a]", ["x = [a for a in b]"]),
        ("for a in b:\n    if a:\n        continue", ["for a in b:\n    if a:\n        pass"]),
        ("def f():\n    return a", ["def f():\n    return None"]),
        ("def f():\n    return None", []),
        ("def f(a: x[0]) -> y[1]:\n    assert a > 2\n    raise E(3, a < 4)", []),
        ("@d(frozen=True)\nclass C:\n    '''Of 1.'''", []),
    ],
)
def test_what_is_changed(before, after):
    assert changes(before) == after


def test_lines_and_import_time():
    found = mutations("N = 1\n\ndef f(a=2):\n    x = (\n        3\n    )\n")
    assert [(m.line, m.statement_line, m.is_at_import) for m in found] == [
        (1, 1, True), (3, 3, True), (5, 4, False),
    ]  # fmt: skip


def test_hits():
    source = (
        "def f(a):\n    if a:\n        return 1\n    elif a is None:\n        pass\n    return 2\n"
    )
    scope = {"hit": set()}
    exec(compile(with_hits(source, "hit", "m"), "m.py", "exec"), scope)
    for value, lines in ((1, {2, 3}), (0, {2, 4, 6}), (None, {2, 4, 5, 6})):
        scope["hit"].clear()
        scope["f"](value)
        assert scope["hit"] == {("m", line) for line in lines}


MODULE = """
from dataclasses import dataclass

LIMIT = 5

@dataclass
class Row:
    size: int = 7

def at_least(value, least=3):
    return value >= least

def is_big(row):
    return row.size > LIMIT

def nobody():
    return 1

ROWS = [is_big(Row())]
"""
TESTS = """
from judged import LIMIT, Row, at_least, is_big

def test_least():
    assert at_least(3)
    assert not at_least(2)

def test_size():
    assert is_big(Row())
    assert Row().size == 7
    assert LIMIT == 5
"""


def test_a_trial(tmp_path):
    """In a process of its own: it runs pytest, and there is no way back from a transplant."""
    (tmp_path / "judged.py").write_text(MODULE)
    (tmp_path / "test_judged.py").write_text(TESTS)
    out = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench.mutants", "judged", "--out", str(out)]
    subprocess.run(
        [*command, "--tests", str(tmp_path), "--per-module", "99"],
        cwd=ROOT, check=True, capture_output=True, timeout=250,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    ends = {(row["line"], row["what"]): row["end"] for row in json.loads(out.read_text())}
    alive = {place: end for place, end in ends.items() if end in {"survived", "unreached"}}
    assert alive == {
        (14, "Gt -> GtE"): "survived",
        (17, "return None"): "unreached",
        (17, "1 -> 2"): "unreached",
    }
    assert {place for place in ends if place[0] in {4, 8, 10}} == {
        (4, "5 -> 6"), (8, "7 -> 8"), (10, "3 -> 4"),
    }  # fmt: skip


def test_the_modules_that_conclude_are_there():
    modules = importlib.import_module("bench.mutants").MODULES
    for name in modules:
        assert Path(ROOT, *name.split(".")).with_suffix(".py").is_file(), name
