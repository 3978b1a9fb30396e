"""Tables of training output as notebooks show them and people paste them.

``Step | Training Loss | reward``, cells between bars, tabs or two blanks; "No Log" is no value.
"""

from __future__ import annotations

import re

from dfx_agent.node.logs.run import Notes, Record
from dfx_agent.node.logs.values import number, numbers, step_of

_SEPARATOR = re.compile(r"\s*\|\s*|\t+|\s{2,}")
_LOSSES = {"training loss": "loss", "validation loss": "eval_loss"}
_MAX_LINE_CHARS = 100_000
# a number, the beginning of one, or a cell without a value
_CELL = re.compile(r"[-+.\deE]*|no log|nan|[-+]?inf|none|null", re.IGNORECASE)


class PrintedTable:
    """The table that the lines are in, if any. A row with another number of cells is damaged."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._names: list[str] = []
        # of the latest line of words: it may be the header of another table
        self._num_words = 0

    def record(self, line: str) -> Record | None:
        """The row that this line is; None for what is no row of a table, its header too."""
        if len(line) > _MAX_LINE_CHARS:
            return None
        begin = line.lstrip("| \t")[:1]
        if not begin.isdecimal():
            if begin.isalpha():
                self._begin(line)
            return None
        if not self._names:
            return None
        cells = _cells(line)
        if len(cells) != len(self._names):
            self._count_damaged(line, cells if len(cells) > 1 else line.split())
            return None
        return table_record(self._names, cells)

    def _count_damaged(self, line: str, cells: list[str]) -> None:
        """Neither a row of another table nor a line that only begins with a number."""
        is_of_table = line.lstrip().startswith("|") or all(map(_CELL.fullmatch, cells))
        is_row = len(cells) > 1 and step_of(cells[0]) is not None
        if is_row and is_of_table and len(cells) != self._num_words:
            what = "has more or fewer cells than its table: left out"
            self._notes.left_out(what, f"row of step {cells[0][:20]}")

    def _begin(self, line: str) -> None:
        if not self._names and line.lstrip("| \t")[:1] not in {"S", "s"}:
            return
        cells = _cells(line)
        if len(cells) > 1 and cells[0].lower() == "step":
            self._names, self._num_words = column_names(cells), 0
        elif len(cells) > 1 and not any(number(cell) is not None for cell in cells):
            self._num_words = len(cells)


def column_names(cells: list[str]) -> list[str]:
    """The Trainer writes "Training Loss" for loss and " / " for "/"."""
    names = [re.sub(r"\s*/\s*", "/", cell.strip()) for cell in cells]
    return ["step" if i == 0 else _LOSSES.get(name.lower(), name) for i, name in enumerate(names)]


def table_record(names: list[str], cells: list[str]) -> Record | None:
    """None without a step."""
    record = numbers(zip(names, cells, strict=False))
    return record if step_of(record.get("step")) is not None else None


def _cells(line: str) -> list[str]:
    return _SEPARATOR.split(line.strip().strip("|").strip())
