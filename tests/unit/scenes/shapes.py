"""Frameworks that no package index has: the same job runs on a copy of their call shapes and, where
an environment variable names one, on a real checkout."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "frameworks"))
from observed_job import Observed, need_packages, observe

__all__ = ["Observed", "Shapes", "observe"]


@dataclass(frozen=True)
class Shapes:
    """``sources``: file -> code of the copy; ``variable`` names the checkout, whose packages are
    under ``folders``; ``stubs`` are what it needs and what a test machine has not."""

    variable: str
    sources: Mapping[str, str]
    folders: tuple[str, ...] = (".",)
    stubs: tuple[str, ...] = ()

    def on_copy(self, job: str, folder: Path) -> Observed:
        need_packages("\n".join(map(dedent, self.sources.values())))
        for name, source in self.sources.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(source))
        return observe(job, paths=[folder])

    def on_checkout(self, job: str) -> Observed:
        paths = [Path(os.environ[self.variable]) / folder for folder in self.folders]
        return observe(job, paths=paths, stubs=self.stubs)

    @property
    def each_place(self) -> pytest.MarkDecorator:
        """``where``: the copy, and the checkout where the environment names one."""
        places = ["copy", "checkout"] if os.environ.get(self.variable) else ["copy"]
        return pytest.mark.parametrize("where", places)

    def run(self, where: str, job: str, folder: Path) -> Observed:
        """``where``: "copy" or "checkout"."""
        return self.on_copy(job, folder) if where == "copy" else self.on_checkout(job)
