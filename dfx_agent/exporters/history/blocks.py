"""One step of one role as a block of float32: a row per rank, a column per measured value.

A schema names the ranks and the columns, so that a file stores these names once and not per step.
A column is ``wall``, ``active``, ``idle``, ``samples``, ``stage:NAME``, ``wait:KIND:STAGE`` or
``tokens:KIND``. A value that is missing is NaN, never 0.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from dfx_agent.snapshot import StepCell, StepRow, TimeSplit

_STAGE, _WAIT, _TOKENS = "stage:", "wait:", "tokens:"
_VALUE = struct.Struct("<f")
_SCALARS = ("",)  # the only row of a block of scalars: they are means over ranks


@dataclass(frozen=True, slots=True)
class Schema:
    """Names of the rows (ranks) and columns of a block."""

    ranks: tuple[str, ...]
    columns: tuple[str, ...]

    def extended(self, ranks: Iterable[str], columns: Iterable[str]) -> Schema:
        """This schema if it has all of these names; else with the missing ones at the end."""
        all_ranks = tuple(dict.fromkeys((*self.ranks, *ranks)))
        all_columns = tuple(dict.fromkeys((*self.columns, *columns)))
        if (all_ranks, all_columns) == (self.ranks, self.columns):
            return self
        return Schema(all_ranks, all_columns)


EMPTY = Schema((), ())


def pack_cells(cells: Sequence[StepCell], schema: Schema) -> tuple[Schema, bytes]:
    """The ranks of a step as a block, and ``schema`` with what this block needs."""
    names = [_columns(cell) for cell in cells]
    ranks = [cell.rank for cell in cells]
    if tuple(ranks) != schema.ranks or any(columns != schema.columns for columns in names):
        schema = schema.extended(ranks, chain.from_iterable(dict.fromkeys(names)))
    rows = dict(zip(ranks, zip(names, map(_values, cells), strict=True), strict=True))
    values = array("f")
    for rank in schema.ranks:
        columns, numbers = rows.get(rank, ((), ()))
        if columns != schema.columns:
            row = dict(zip(columns, numbers, strict=True))
            numbers = [row.get(column, math.nan) for column in schema.columns]
        values.extend(numbers)
    return schema, _swapped(values).tobytes()


def _columns(cell: StepCell) -> tuple[str, ...]:
    """Names of ``_values``; the same object for equal names."""
    split = cell.split
    waits = tuple((kind, *by_stage) for kind, by_stage in split.wait_seconds.items())
    samples = () if cell.num_samples is None else ("samples",)
    return _named(samples, tuple(split.stage_seconds), waits, tuple(cell.tokens))


@lru_cache(maxsize=256)
def _named(
    samples: tuple[str, ...], stages: tuple[str, ...], waits: tuple[tuple[str, ...], ...],
    tokens: tuple[str, ...],
) -> tuple[str, ...]:  # fmt: skip
    return (
        *("wall", "active", "idle"),
        *samples,
        *(_STAGE + stage for stage in stages),
        *(f"{_WAIT}{kind}:{stage}" for kind, *of_kind in waits for stage in of_kind),
        *(_TOKENS + kind for kind in tokens),
    )


def _values(cell: StepCell) -> list[float]:
    split = cell.split
    found = [split.wall_seconds, split.active_seconds, split.idle_seconds]
    if cell.num_samples is not None:
        found.append(cell.num_samples)
    found += split.stage_seconds.values()
    for by_stage in split.wait_seconds.values():
        found += by_stage.values()
    found += cell.tokens.values()
    return found


def pack_scalars(values: Mapping[str, float], schema: Schema) -> tuple[Schema, bytes]:
    """Scalars of a step as a block of one row, and ``schema`` with what this block needs."""
    if (columns := tuple(values)) == schema.columns:
        numbers = array("f", values.values())
    else:
        schema = schema.extended(_SCALARS, columns)
        numbers = array("f", [values.get(column, math.nan) for column in schema.columns])
    return schema, _swapped(numbers).tobytes()


def unpack(block: bytes, schema: Schema) -> dict[str, dict[str, float]]:
    """Rank -> column -> value; missing values are left out. ValueError for a damaged block."""
    values = array("f")
    values.frombytes(block)
    width = len(schema.columns)
    if len(values) != width * len(schema.ranks):
        raise ValueError(f"a block of {len(values)} values does not match its schema")
    numbers = _swapped(values)
    return {
        rank: {
            column: value
            for column, value in zip(
                schema.columns, numbers[i * width : (i + 1) * width], strict=True
            )
            if not math.isnan(value)
        }
        for i, rank in enumerate(schema.ranks)
    }


def block_value(block: bytes | None, index: int) -> float | None:
    """One value of a block, as an SQL function; None if it is missing or not finite."""
    try:
        (value,) = _VALUE.unpack_from(block or b"", 4 * index)
    except struct.error:
        return None
    return float(value) if math.isfinite(value) else None


def cells_of(rows: Mapping[str, Mapping[str, float]]) -> tuple[StepCell, ...]:
    """The ranks of a step as they were observed; ranks without values are left out."""
    return tuple(_cell(rank, values) for rank, values in rows.items() if values)


def _cell(rank: str, values: Mapping[str, float]) -> StepCell:
    waits: dict[str, dict[str, float]] = {}
    for column, seconds in values.items():
        if column.startswith(_WAIT):
            kind, _, stage = column.removeprefix(_WAIT).partition(":")
            waits.setdefault(kind, {})[stage] = seconds
    split = TimeSplit(
        values.get("wall", 0.0),
        values.get("active", 0.0),
        values.get("idle", 0.0),
        _with_prefix(values, _STAGE),
        waits,
    )
    return StepCell(rank, split, _with_prefix(values, _TOKENS), values.get("samples"))


def step_row(
    step: int, role: str, span: tuple[float, float], missing_ranks: Sequence[str],
    bubble_ratio: float | None, rows: Mapping[str, Mapping[str, float]],
) -> StepRow:  # fmt: skip
    """A stored step as the agent once published it."""
    return StepRow(step, role, *span, tuple(missing_ranks), bubble_ratio, cells_of(rows))


def _with_prefix(values: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {c.removeprefix(prefix): v for c, v in values.items() if c.startswith(prefix)}


def _swapped(values: array[float]) -> array[float]:
    """The same values in little-endian order, or back."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
