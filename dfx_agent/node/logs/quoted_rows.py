"""CSV rows whose quote may be open because a crash cut them; the rows below are intact."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from dfx_agent.node.logs.run import Notes
from dfx_agent.node.logs.values import number

# a cell with a text of the model has line ends, but not more of them
_MAX_LINES_OF_ROW = 1_000


def whole_rows(
    lines: Iterable[str], delimiter: str, num_columns: int, notes: Notes
) -> Iterator[str]:
    """The lines without those that open a quote which no line below closes."""
    waiting = _Lines(lines)
    for line in waiting:
        if not _is_odd(line):
            yield line
            continue
        below = _until_closed(waiting)
        if _is_row([line, *below], delimiter, num_columns):
            yield line
            yield from below
        else:
            notes.left_out("has a quote that is not closed: left out", f"row {line[:20].strip()!r}")
            waiting.again.extendleft(reversed(below))


class _Lines:
    """Lines, first those that are to be read ``again``."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.again: deque[str] = deque()
        self._lines = iter(lines)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        return self.again.popleft() if self.again else next(self._lines)


def _is_odd(line: str) -> bool:
    return '"' in line and line.count('"') % 2 == 1


def _until_closed(lines: _Lines) -> list[str]:
    below = []
    for line in islice(lines, _MAX_LINES_OF_ROW):
        below.append(line)
        if _is_odd(line):
            break
    return below


def _is_row(lines: list[str], delimiter: str, num_columns: int) -> bool:
    """Whether the lines together are one row, and none of them is a row of its own."""
    if len(lines) == 1 or not _is_odd(lines[-1]):
        return False
    try:
        rows = list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return False
    within = (line.split(delimiter) for line in lines[1:])
    return [len(row) for row in rows] == [num_columns] and not any(
        len(cells) == num_columns and number(cells[0]) is not None for cells in within
    )
