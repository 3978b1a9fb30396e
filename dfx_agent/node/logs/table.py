"""CSV with a header, one step a row. An empty cell is a value that is missing.

Of NaN ``nan_cells`` decides. In a table of one line for each value somebody logged it: it is one.

What exports look like: W&B writes one column for each run and key ("run - train/reward", next to
its __MIN and __MAX), MLflow and SwanLab a line for each value; spreadsheets write semicolons and
decimal commas.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import dropwhile, islice
from pathlib import Path
from typing import NamedTuple

from dfx_agent.node.logs.key_map import NO_MAP, KeyMap
from dfx_agent.node.logs.lines import read_lines
from dfx_agent.node.logs.nan_cells import NanCells
from dfx_agent.node.logs.quoted_rows import whole_rows
from dfx_agent.node.logs.run import MAX_KEYS, NotALogError, Notes, Part, Record, UnreadableLogError
from dfx_agent.node.logs.step_window import StepWindow
from dfx_agent.node.logs.steps import STEP_KEYS, step_name
from dfx_agent.node.logs.values import number

_DELIMITERS = ",;\t|"
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?")
# spreadsheets name their delimiter, people name the source of a table
_PREAMBLE = re.compile(r"(?:sep=.|#[^,;\t|]*)\s*$")
_MAX_CELL_CHARS = 1 << 20
# a column with a number in one of the first rows holds numbers
_ROWS_LEARNED = 16
_NO_VALUE = frozenset({"", "-", "--", "none", "null", "na", "n/a", "nan", "missing"})
_MAX_COLUMNS_READ = 200_000
_MAX_VALUES_HELD = 1_000_000
_STEP_NAMES = frozenset(STEP_KEYS)
# each run of a file is one more reading of it
MAX_RUNS = 200
# of one line for each value: how exports call key, value and run
KEY_COLUMNS, VALUE_COLUMNS = ("key", "metric", "metric_name", "tag"), ("value", "metric_value")
_RUN_COLUMNS = ("run_id", "run_uuid", "run", "run_name", "experiment")


class Header(NamedTuple):
    """``names``: None for a column that is not read; ``has_names``: False without a header."""

    delimiter: str
    names: list[str | None]
    has_names: bool


class Column(NamedTuple):
    """One column of a W&B export."""

    run: str
    key: str


def table_parts(path: Path, key_map: KeyMap = NO_MAP) -> list[Part]:
    """The runs of a table: one, or those that its columns or rows name.

    NotALogError without a row, and without a header while nobody says what its columns are.
    """
    header = _header_of_rows(path, key_map)
    if place := _long_columns(header):
        runs = _runs_of_lines(path, header, place[2])
        return [
            Part(run, partial(_read_lines_of_values, path, header, place, run))
            for run in runs[:MAX_RUNS]
        ]
    columns = [_column(name) for name in header.names]
    runs = list(dict.fromkeys(column.run for column in columns if column and column.run))
    # the first is the axis that was chosen: the step, or a time
    is_named = all(c is None or c.run or c.key in STEP_KEYS for c in columns[1:])
    if not runs or not is_named:
        return [Part("", partial(_read_rows, path, header))]
    return [
        Part(run, partial(_read_rows, path, _of_run(header, columns, run)))
        for run in runs[:MAX_RUNS]
    ]


def _header_of_rows(path: Path, key_map: KeyMap) -> Header:
    notes = Notes()
    header = _header(path, notes)
    if header is None:
        raise NotALogError(f"{path} holds no line{notes.in_brackets}")
    if not header.has_names and not key_map.spellings:
        remedy = "name its columns by their number: --map reward=2 --map step=1"
        raise NotALogError(f"{path} is a table with no header: {remedy}")
    if next(_cells(path, header, notes), None) is None:
        raise NotALogError(f"{path} has a header and no row below it{notes.in_brackets}")
    return header


def _header(path: Path, notes: Notes) -> Header | None:
    first = next(_table_lines(path, notes), None)
    if first is None:
        return None
    counts = {mark: first.count(mark) for mark in _DELIMITERS}
    delimiter = max(counts, key=lambda mark: counts[mark])
    try:
        cells = next(csv.reader([first], delimiter=delimiter), [])
    except csv.Error as error:
        raise UnreadableLogError(f"{path} is not CSV: {error}") from None
    cells = [cell.strip() for cell in cells[:_MAX_COLUMNS_READ]]
    has_names = not all(_cell(cell, delimiter) is not None for cell in cells if cell)
    names = [step_name(cell) if has_names else str(i) for i, cell in enumerate(cells, start=1)]
    return Header(delimiter, list(names), has_names)


def _read_rows(path: Path, header: Header, notes: Notes) -> Iterator[Record]:
    if not header.has_names:
        notes.add("no header: columns are called 1, 2, ...")
    names = _limit(header.names, notes)
    read_cell = partial(_cell, delimiter=header.delimiter)
    nan_cells, numeric = NanCells(), set[str]()
    num_blank = 0
    for i, cells in _cells(path, header, notes):
        record, nans, others = _read_row(names, cells, read_cell)
        if i < _ROWS_LEARNED:
            numeric |= record.keys()
        if any(name in numeric and _is_garbage(cell) for name, cell in others):
            notes.left_out("has a cell that is no number: left out", f"row {i}")
        if nans or others:
            found = nan_cells.values(nans, [name for name, _ in others], record, i)
            record.update(dict.fromkeys(found, math.nan))
            notes.num_nan_cells.update(name for name in nans if name not in found)
        num_blank += 1
        if not record.keys() <= _STEP_NAMES:
            num_blank = 0
            yield record
    if num_blank and None not in names:
        notes.add(f"the last {num_blank:,} rows of the table have no value")


def _read_row(
    names: list[str | None], cells: list[str], read_cell: Callable[[str], float | None]
) -> tuple[Record, list[str], list[tuple[str, str]]]:
    """Values, the names of those that are NaN, and cells without a number by name."""
    record: Record = {}
    nans, others = [], []
    for name, cell in zip(names, cells, strict=False):
        if name is None:
            continue
        try:
            value: float | None = float(cell) if cell else None
        except ValueError:
            value = read_cell(cell)
        if value is None:
            others.append((name, cell))
        elif value == value:  # noqa: PLR0124 (the fastest test for NaN)
            record[name] = value
        elif name not in _STEP_NAMES:
            nans.append(name)
    return record, nans, others


def _is_garbage(cell: str) -> bool:
    """Whether the text is no usual notation for a missing value."""
    return cell.strip().lower() not in _NO_VALUE


def _limit(names: list[str | None], notes: Notes) -> list[str | None]:
    """Column names up to the limit; the step's column is always included."""
    if len(names) <= MAX_KEYS:
        return names
    notes.add(f"{len(names):,} columns: only the first {MAX_KEYS:,} are read")
    return [name if i < MAX_KEYS or name in STEP_KEYS else None for i, name in enumerate(names)]


def _cells(path: Path, header: Header, notes: Notes) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of the rows that have a cell for each column, and no more."""
    lines = _table_lines(path, notes)
    num_columns = len(header.names)
    below = lines if not header.has_names else islice(lines, 1, None)
    whole = whole_rows(below, header.delimiter, num_columns, notes)
    rows = csv.reader(whole, delimiter=header.delimiter)
    least = max((i for i, name in enumerate(header.names, start=1) if name != ""), default=0)
    try:
        for i, cells in enumerate(rows):
            if _is_of_width(cells, least, num_columns):
                yield i, cells
            else:
                more = "fewer" if len(cells) < least else "more"
                notes.left_out(f"has {more} cells than the header: left out", f"row {i}")
    except csv.Error as error:
        notes.add(f"the table cannot be read on: {error}")


def _is_of_width(cells: list[str], least: int, num_columns: int) -> bool:
    """Whether what is too much is blank, as behind a last delimiter, or not read of any row."""
    is_whole = num_columns >= _MAX_COLUMNS_READ or not any(map(str.strip, cells[num_columns:]))
    return len(cells) >= least and is_whole


def _table_lines(path: Path, notes: Notes) -> Iterator[str]:
    """Lines without empty ones, and without a comment or "sep=;" above the header."""
    lines = (line for line in _lines(path, notes) if line.strip())
    return dropwhile(_PREAMBLE.match, lines)


def _lines(path: Path, notes: Notes) -> Iterator[str]:
    """Remove NUL bytes: a crashed writer leaves them, and they would end the reading."""
    csv.field_size_limit(_MAX_CELL_CHARS)
    for line in read_lines(path, notes):
        yield line.replace("\0", "") if "\0" in line else line


def _cell(cell: str, delimiter: str) -> float | None:
    text = cell.strip()
    if delimiter != "," and _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    return number(text)


def _column(name: str | None) -> Column | None:
    """None for what W&B draws around a curve: the lowest and highest of the points it joined."""
    if name is None or name.endswith(("__MIN", "__MAX")):
        return None
    run, _, key = name.rpartition(" - ")
    return Column(run, step_name(key))


def _of_run(header: Header, columns: Iterable[Column | None], run: str) -> Header:
    """The columns of one run, and the columns that belong to no run, such as the step."""
    names = [
        c.key if c is not None and (c.run == run or (not c.run and c.key in STEP_KEYS)) else None
        for c in columns
    ]
    if names.count("_step") and "step" in names:
        names = [None if name == "_step" else name for name in names]
    return header._replace(names=names)


def _long_columns(header: Header) -> tuple[int, int, int | None, int] | None:
    """Positions of key, value, run and step in a table with one line per value."""
    lowered = [(name or "").lower() for name in header.names]
    key = next((lowered.index(name) for name in KEY_COLUMNS if name in lowered), None)
    value = next((lowered.index(name) for name in VALUE_COLUMNS if name in lowered), None)
    step = next((lowered.index(name) for name in STEP_KEYS if name in lowered), None)
    if key is None or value is None or step is None:
        return None
    return key, value, next((lowered.index(n) for n in _RUN_COLUMNS if n in lowered), None), step


def _runs_of_lines(path: Path, header: Header, run_column: int | None) -> list[str]:
    if run_column is None:
        return [""]
    rows = _cells(path, header, Notes())
    return list(dict.fromkeys(cells[run_column] for _, cells in rows))


def _read_lines_of_values(
    path: Path, header: Header, place: tuple[int, int, int | None, int], run: str, notes: Notes
) -> Iterator[Record]:
    """Join records by step, as far as a million values can be stored."""
    key, value, run_column, step = place
    window = StepWindow(notes, _MAX_VALUES_HELD, _MAX_VALUES_HELD)
    for i, cells in _cells(path, header, notes):
        if run_column is not None and cells[run_column] != run:
            continue
        of_step, of_value = (
            _cell(cells[step], header.delimiter),
            _cell(cells[value], header.delimiter),
        )
        if of_step is None or of_value is None or of_step != of_step // 1:
            notes.left_out("has no step or no value: left out", f"row {i}")
            continue
        yield from window.add(int(of_step), {cells[key]: of_value})
    yield from window.rest()
