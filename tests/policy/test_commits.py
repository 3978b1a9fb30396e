"""Subjects of commits: `part: what it does`, so that the history can be read by part."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# the first commit that this was asked of; what is older has other forms
SINCE = "6db61ac6"
LONGEST = 72
FORM = re.compile(r"[a-z][a-z0-9_./-]*(, [a-z][a-z0-9_./-]*)*: \S.*[^.\s]")


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """Also where the checkout belongs to somebody else."""
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def test_each_subject_says_the_part_and_what_it_does() -> None:
    reported = git("log", "--no-merges", "--format=%s", f"{SINCE}..HEAD")
    if reported.returncode != 0:
        pytest.skip(f"the git history cannot be read: {reported.stderr.strip()}")
    wrong = [s for s in reported.stdout.splitlines() if len(s) > LONGEST or not FORM.fullmatch(s)]
    assert wrong == []
