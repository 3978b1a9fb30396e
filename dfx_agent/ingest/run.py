"""What every reader returns."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Row = tuple[int, dict[str, float]]

MAX_WARNINGS = 20


class UnreadableLogError(Exception):
    """The file cannot be read as a log; one line that says why and what to do."""


@dataclass
class Run:
    """One run: step reports in the order they were written, native key -> value.

    A step may be smaller than the one before it: the job was resumed. ``framework`` is "" when no
    key is known. Missing values have no key; NaN and Inf are values.
    """

    framework: str = ""
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Reports of one step that come in parts become one row."""
        if self.rows and self.rows[-1][0] == step:
            self.rows[-1][1].update(values)
        else:
            self.rows.append((step, values))

    def warn(self, message: str) -> None:
        """The first of many say it."""
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(message)


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a text file, gzipped or not; bytes that are not UTF-8 are replaced."""
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    open_text = gzip.open if is_gzip else open
    with open_text(path, "rt", encoding="utf-8", errors="replace") as lines:
        yield from lines
