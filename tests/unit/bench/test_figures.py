"""A figure names the commit it was measured at, in results.json and on the page."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import measurement
from bench.__main__ import updated
from bench.figures import page

MACHINE = {
    "cpu": "CPU", "num_cores": 2, "load_average": 0.1, "python": "3.11.7", "kernel": "6.1",
    "commit": "0123456789abcdef0123456789abcdef01234567", "is_dirty": False,
    "date": "2026-11-22T10:00:00+00:00",
}  # fmt: skip


def row(**changes):
    base, bar = measurement.Baseline("theirs", 3.0), measurement.Bar(1.0)
    result = measurement.Result("a number", 1.5, "us", 3, {"p10": 1.0, "p90": 2.0}, base, bar)
    return result.as_row({**MACHINE, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "Commit 0123456789; 2026-11-22, CPU, 2 cores"),
        ({"is_dirty": True}, "Commit 0123456789, with changes that are in no commit; "),
        ({"commit": None}, "Commit not recorded; "),
    ],
)
def test_each_table_says_where_its_figures_come_from(changes, says):
    assert says in page([row(**changes)])


def test_figures_of_two_commits_are_two_tables():
    text = page([row(), row(), row(commit="f" * 40)])
    assert text.count("Commit 0123456789") == text.count("Commit ffffffffff") == 1
    line = "| a number | 1.5 us | 1 to 2 | theirs: 3 | 0.5 | 3 | <= 1 **missed** |\n"
    assert text.count(line) == 3


def test_a_bench_that_ran_again_replaces_its_rows_alone():
    old = [{"bench": "overhead", "name": "a"}, {"bench": "overhead", "name": "gone"}, {"name": "b"}]
    old.append({"bench": "span_cost", "name": "c"})
    new = [{"bench": "overhead", "name": "a", "value": 2}, {"bench": "overhead", "name": "b"}]
    assert updated(old, new) == [old[3], *new]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    def git(*words):
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)
        return done.stdout.decode().strip()

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setattr(measurement, "HERE", tmp_path)
    return tmp_path, git("rev-parse", "HEAD")


def test_what_is_measured_is_named_with_its_commit(checkout):
    folder, commit = checkout
    assert measurement.machine().items() >= {"commit": commit, "is_dirty": False}.items()
    (folder / "new").write_text("no part of the tree")
    assert measurement.checkout() == {"commit": commit, "is_dirty": False}
    (folder / "file").write_text("2")
    assert measurement.checkout() == {"commit": commit, "is_dirty": True}


def test_without_git_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "HERE", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(Path(tmp_path).parent))
    assert measurement.checkout() == {"commit": None, "is_dirty": None}
    monkeypatch.setenv("PATH", "")
    assert measurement.checkout() == {"commit": None, "is_dirty": None}
