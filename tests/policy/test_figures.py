"""Published figures are of the code that ships, or of what it was not long ago."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAX_CHANGES = 200  # commits that changed the product since a figure was measured


def rows() -> list[dict[str, Any]]:
    return json.loads((ROOT / "bench" / "results.json").read_text(encoding="utf-8"))


def git(*words: str) -> str | None:
    """None if git fails: there is no repository, or the commit is not in its history."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


@cache
def num_changes_since(commit: str) -> int | None:
    """None if the history does not contain the commit."""
    if git("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    count = git("rev-list", "--count", f"{commit}..HEAD", "--", "dfx_agent")
    return None if count is None else int(count)


def test_each_figure_names_the_commit_that_was_measured():
    assert rows()
    assert [row["name"] for row in rows() if not row["machine"].get("commit")] == []
    assert [row["name"] for row in rows() if row["machine"].get("is_dirty")] == []


def test_each_figure_is_of_a_recent_commit():
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("the history is incomplete: clone without --depth")
    ages = {row["name"]: num_changes_since(row["machine"]["commit"] or "none") for row in rows()}
    old = [name for name, age in ages.items() if age is None or age > MAX_CHANGES]
    assert old == [], "measure again: python -m bench NAME --update, then make generate"
