"""Types that all readers use: records of native values, rows with a step, notes for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# what a log reports at once: native key -> value, its step among them
Record = dict[str, float]
Row = tuple[int, Record]

MAX_NOTES = 20
# real logs have up to 140; a log with more keys loses the rest, which is noted
MAX_KEYS = 5_000


class UnreadableLogError(Exception):
    """The file cannot be read as a log; one line that says why and what to do."""


class NotALogError(UnreadableLogError):
    """Nothing in the file is a step report: in a folder, it is something else."""


class Notes:
    """What was passed over while a log was read. The first of a kind says where, all count.

    ``num_left_out``: damaged lines and rows that were not read. ``guessed``: signal or "step" ->
    the key that was read for it by its meaning. ``is_counted``: no key is the step, so rows are
    counted. ``num_nan_cells``: key of a table -> cells that are NaN, which is no value there.
    ``is_cut``: what stands behind some place of the file could not be read.
    """

    def __init__(self) -> None:
        self.is_cut = False
        self.is_counted = False
        self.num_left_out = 0
        self.guessed: dict[str, str] = {}
        self.num_nan_cells: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._num_unnamed = 0

    def add(self, what: str, where: str = "") -> None:
        """``what`` happened ``where``: one line for all that have the same ``what``."""
        if what in self._counts:
            self._counts[what] += 1
        elif len(self._first) < MAX_NOTES:
            self._first[what] = f"{where} {what}".strip()
            self._counts[what] = 1
        else:
            self._num_unnamed += 1

    def left_out(self, what: str, where: str = "") -> None:
        """Add a note about a line or a row that could not be read."""
        self.num_left_out += 1
        self.add(what, where)

    def cut(self, what: str, where: str = "") -> None:
        """The same, and nothing behind it was read."""
        self.is_cut = True
        self.add(what, where)

    @property
    def lines(self) -> list[str]:
        lines = []
        for what, line in self._first.items():
            more = self._counts[what] - 1
            lines.append(f"{line} ({more:,} more such)" if more else line)
        if self._num_unnamed:
            lines.append(f"{self._num_unnamed:,} more of other kinds")
        return lines

    @property
    def in_brackets(self) -> str:
        """The first of them behind an error, "" without any."""
        return f" ({'; '.join(self.lines[:2])})" if self._first else ""


class Part(NamedTuple):
    """One run of a file; ``name`` is "" when the file holds no other."""

    name: str
    records: Callable[[Notes], Iterator[Record]]


@dataclass
class Run:
    """One run, read whole: step reports in the order they were written.

    A step may be smaller than the one before it: the job was resumed. ``framework`` is "" when no
    key is known. Missing values have no key; NaN and Inf are values.
    """

    framework: str = ""
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
