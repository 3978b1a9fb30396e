"""CSV with a header, one step a row. An empty cell, and "nan", is a value that is missing."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from dfx_agent.ingest.run import Run, UnreadableLogError, read_lines
from dfx_agent.ingest.values import STEP_KEYS, number, step_of


def read_table(path: Path) -> Run:
    run = Run()
    # NUL bytes, from a crashed writer, would end the reading
    rows = csv.reader(line.replace("\0", "") for line in read_lines(path))
    try:
        header = [name.strip() for name in next(rows, [])]
        column = _step_column(header)
        if column is None:
            run.warn("no step column: rows are counted from 0")
        for i, cells in enumerate(rows):
            if cells:
                _add(run, header, cells, column, i)
    except csv.Error as error:
        raise UnreadableLogError(f"{path} is not CSV: {error}") from None
    return run


def _step_column(header: list[str]) -> int | None:
    """Trackers write "Step"; a flattened export has training_global_step beside its step."""
    names = [name.lower() for name in header]
    return next((names.index(key) for key in STEP_KEYS if key in names), None)


def _add(run: Run, header: list[str], cells: list[str], column: int | None, i: int) -> None:
    step = i if column is None else step_of(cells[column] if column < len(cells) else None)
    if step is None:
        run.warn(f"row {i} has no step: left out")
        return
    values = {}
    for j, (name, cell) in enumerate(zip(header, cells, strict=False)):
        value = None if j == column or not cell else number(cell)
        if value is not None and not math.isnan(value):
            values[name] = value
    run.add(step, values)
