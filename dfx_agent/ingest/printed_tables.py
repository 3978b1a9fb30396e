"""Tables of training output as notebooks show them and people paste them.

``Step | Training Loss | reward``, cells between bars, tabs or two blanks; "No Log" is no value.
"""

from __future__ import annotations

import re

from dfx_agent.ingest.run import Record
from dfx_agent.ingest.values import numbers, step_of

_SEPARATOR = re.compile(r"\s*\|\s*|\t+|\s{2,}")
_LOSSES = {"training loss": "loss", "validation loss": "eval_loss"}
_MAX_LINE_CHARS = 100_000


class PrintedTable:
    """The table that the lines are in, if any."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def record(self, line: str) -> Record | None:
        """The row that this line is; None for what is no row of a table, its header too."""
        if len(line) > _MAX_LINE_CHARS:
            return None
        begin = line.lstrip("| \t")[:1]
        if not begin.isdecimal():
            if begin in {"S", "s"}:
                self._begin(line)
            return None
        if not self._names:
            return None
        cells = _cells(line)
        if len(cells) != len(self._names):
            self._names = []
            return None
        return table_record(self._names, cells)

    def _begin(self, line: str) -> None:
        cells = _cells(line)
        if len(cells) > 1 and cells[0].lower() == "step":
            self._names = column_names(cells)


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
