"""The shape ledger: records what a batch looks like when one stage passes it to the next.

``observe`` reduces every column to one number per row (its sum). For each batch it sends checksums
of schema and shapes, the tokens that the mask selects, rows with NaN or Inf, rows whose length does
not fit the mask, group sizes, and hashes of the sample ids.

Two hashes per column distinguish moved rows from changed values: ``values`` covers the row sums
alone, ``aligned`` covers (id, row sum). Sums of hashes modulo a prime do not depend on the order of
rows, and the sums of several ranks can be added. The fields are ``LEDGER_FIELDS`` of
wire/records.py. The names of ids, groups and masks are those that frameworks use
(docs/concepts/ledger.md).

Limits on the cost:

- In steps shorter than 0.25 s, only every 2nd, 4th, 8th ... step is inspected. A batch that is not
  inspected is one record.
- Columns after the 64th and rows of Python lists after the 4,096th are ignored. ``num_unread``
  counts them.
- Host columns above 2**20 elements (masks 2**22, Python lists 2**17) and columns above 2**14 rows
  are read in evenly spaced rows. They have no hashes; ``num_sampled`` counts the rows that were
  read.
- Only the first 4,096 characters of a text are read, and no objects of the job's own classes.

A batch in parts (micro-batches) is read as one batch, see ``join_parts``. Rows of a device tensor
are summed on the device in the current stream. The sums are fetched later, so nothing waits.
"""

# no `from __future__ import annotations`: dataclasses resolve text annotations through
# sys.modules, which does not contain an attached guest
import itertools
import math
import operator
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dfx_agent.shim import meter, sample_statistics
from dfx_agent.shim.meter import clock
from dfx_agent.shim.recorder import Recorder
from dfx_agent.wire.layout import MAX_NAMES
from dfx_agent.wire.records import LEDGER, LEDGER_FIELDS, LEDGER_MODULUS

_FIELD = {name: code for code, name in enumerate(LEDGER_FIELDS)}
_MAX_COLUMNS, _MAX_ROWS = 64, 4096
_MAX_ELEMENTS, _MAX_MASK_ELEMENTS, _MAX_LIST_ELEMENTS = 1 << 20, 1 << 22, 1 << 17
_MAX_SUMS = 1 << 14
_MAX_TEXT = 4096

_IDS = ("sample_uuid", "sample_ids", "sample_id", "traj_id", "index")
_GROUPS = ("group_ids", "group_id", "group_index", "traj_group_id", "prompt_id", "uid")
_MASKS = ("response_mask", "completion_mask", "action_mask", "loss_mask", "mask", "attention_mask")
_TAIL = "attention_mask tail"
_LENGTHS = ("response_length", "response_lengths", _TAIL)
_PADDING = "is_padding"  # rows that verl adds to make a batch divisible
_PER_TOKEN = re.compile(r"log_?probs?$|^(advantages|returns|values|entropys|token_level_\w+)$")
_PER_ROW = re.compile(r"^(rewards?|scores?|rm_scores)$")

_next_batch = itertools.count(1).__next__


@dataclass
class _Column:
    """One column of a batch, reduced to one number per row."""

    kind: str
    """Type and number of dimensions."""
    num_rows: int
    widths: Any
    """Tokens of each row; one number if the column is padded."""
    sums: Any
    """One number for each row that was read: a list, or a tensor while it is on a device."""
    is_whole: bool = True
    """Whether every row was read."""
    is_list: bool = False
    """Whether the column is a Python list."""
    texts: list[str] | None = None
    """The rows of a column that names data sources."""


_NOT_A_COLUMN = "NonTensorData"  # of tensordict: one value for the batch that looks like a column


class _Parts(list[Any]):
    """One column of a batch in parts: the values of each part."""


def join_parts(parts: Sequence[Any], columns: Iterable[str] = ()) -> dict[str, Any]:
    """Combine micro-batches into one batch for ``observe``.

    ``columns`` selects columns by name; by default every column that has values in any part. A
    column that some parts lack, and more than 4,096 parts, cannot be read and count as unread.
    """
    rows = [dict(_values(part)) for part in parts[: _MAX_ROWS + 1]]
    names = columns or dict.fromkeys(name for row in rows for name in row)
    by_name = {name: _Parts(row.get(name) for row in rows) for name in names}
    return {n: v for n, v in by_name.items() if any(_has_rows(value) for value in v)}


def _has_rows(value: Any) -> bool:
    is_array = hasattr(value, "dtype") and getattr(value, "ndim", False)
    return bool(is_array) or (isinstance(value, (list, tuple)) and bool(value))


def observe(
    recorder: Recorder, boundary: str, batch: Any, *, ids: Any = None, groups: Any = None
) -> None:
    """Record ``batch`` at ``boundary``. Never raises and never waits for a device.

    A batch is a mapping, a TensorDict, verl's DataProto, an object with fields, a tensor, or a
    list of such samples. ``ids`` and ``groups``, of shape (B,), add columns that it lacks.
    """
    begin = meter.is_open and clock()
    step, now = recorder.step_now(), time.monotonic_ns()
    boundary = str(boundary).replace("/", ".")[:64]

    def write_batch() -> None:
        _write(recorder, boundary, step, now, _fields(columns, num_unread))
        sample_statistics.record_batch(recorder, boundary, step, columns)

    def write_fetched(host: Any) -> None:
        try:
            _insert_fetched(columns.values(), host)
            write_batch()
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()

    try:
        if not recorder.inspects_batches(step):
            _write(recorder, boundary, step, now, [("is_left_out", "", 1.0)])
        else:
            columns, num_unread = _read(batch, ids, groups)
            waiting = [c.sums for c in columns.values() if type(c.sums) is not list]
            if waiting:
                recorder.fetch(sys.modules["torch"].cat(waiting), write_fetched)
            else:
                write_batch()
        if begin:
            meter.spent_ns += clock() - begin
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _write(
    recorder: Recorder, boundary: str, step: int, now: int, rows: Iterable[tuple[str, str, float]]
) -> None:
    """Write the records of one batch."""
    fields, number = list(rows), _next_batch() & 0xFFFFFFFF
    emit, names, count = recorder.emit, recorder.ledger_names, len(fields)
    for field, column, value in fields:
        name = names.get((boundary, column)) or _name_id(recorder, boundary, column)
        emit(now, now, float(value), step, number, count, _FIELD[field], LEDGER, name)


def _name_id(recorder: Recorder, boundary: str, column: str) -> int:
    """Id of the name "boundary/column"; 0, which is not cached, if the name table is full."""
    name_id = recorder.name_id(f"{boundary}/{column}"[:200])
    if name_id and len(recorder.ledger_names) < MAX_NAMES:
        recorder.ledger_names[boundary, column] = name_id
    return name_id


def _read(batch: Any, ids: Any, groups: Any) -> tuple[dict[str, _Column], int]:
    """Return (columns by name, number of columns and lists not read completely)."""
    columns: dict[str, _Column] = {}
    masks: dict[str, Any] = {}
    num_unread = 0
    named = itertools.chain(_values(batch), (("sample_ids", ids), ("group_ids", groups)))
    for name, value in itertools.islice(named, _MAX_COLUMNS):
        try:
            column = _column(name, value)
            if column is not None:
                columns[str(name)] = column
                if name in sample_statistics.SOURCES:
                    column.texts = _texts(value)
                num_unread += column.num_rows > _MAX_ROWS and column.is_list
                if name in _MASKS and not isinstance(value, _Parts):
                    masks[name] = value
        except Exception:  # noqa: BLE001 (one unreadable column must not hide the others)
            num_unread += 1
    mask = _first(_MASKS, masks)
    if "attention_mask" in masks and mask != "attention_mask":
        width = columns[mask].widths
        if isinstance(width, int):
            columns[_TAIL] = _of_array(masks["attention_mask"][:, -width:], _MAX_MASK_ELEMENTS)
    return columns, num_unread + sum(1 for _ in named)


def _values(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield (column, values of all rows); a nested mapping gives names "outer.inner"."""
    for name, value in _items(batch):
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", column) for inner, column in value.items())
        else:
            yield name, value


def _items(batch: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(batch, "non_tensor_batch"):
        yield from () if batch.batch is None else batch.batch.items()
        yield from batch.non_tensor_batch.items()
    elif hasattr(batch, "items"):
        yield from batch.items()
    elif isinstance(batch, (list, tuple)):
        rows = [
            {"item": sample} if isinstance(sample, (list, tuple)) else dict(_values(sample))
            for sample in batch[:_MAX_ROWS]
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        yield from ((name, [row.get(name) for row in rows]) for name in names)
    elif hasattr(batch, "__struct_fields__"):  # msgspec
        yield from ((name, getattr(batch, name)) for name in batch.__struct_fields__)
    else:
        is_record = hasattr(batch, "__dict__") and not hasattr(batch, "dtype")
        yield from vars(batch).items() if is_record else (("item", batch),)


def _column(name: str, value: Any) -> _Column | None:
    """Reduce one value; None if it is not a column: a number, a text, data about the batch."""
    if type(value).__name__ == _NOT_A_COLUMN:
        return None
    limit = _MAX_MASK_ELEMENTS if name in _MASKS else _MAX_ELEMENTS
    if isinstance(value, _Parts):
        return _of_parts(value, limit)
    if hasattr(value, "dtype") and getattr(value, "ndim", False):
        if getattr(value.dtype, "kind", "") in {"O", "S", "U"}:
            return _of_list(value.tolist())
        return _of_array(value, limit)
    return _of_list(value) if isinstance(value, (list, tuple)) and value else None


def _texts(value: Any) -> list[str] | None:
    """The rows of a text column; None for anything else."""
    if isinstance(value, _Parts):
        value = list(itertools.chain.from_iterable(value))
    if getattr(getattr(value, "dtype", None), "kind", "") in {"O", "S", "U"}:
        value = value.tolist()
    is_text = isinstance(value, (list, tuple)) and value and isinstance(value[0], str)
    return list(value[:_MAX_ROWS]) if is_text else None


def _of_parts(parts: _Parts, limit: int) -> _Column:
    """All parts as one column; ValueError if a part lacks the column or there are too many."""
    if len(parts) > _MAX_ROWS or not all(map(_has_rows, parts)):
        raise ValueError(len(parts))
    if isinstance(parts[0], (list, tuple)):
        return _of_list(list(itertools.chain.from_iterable(parts)))
    on_device, shapes = _is_on_device(parts[0]), [tuple(map(int, part.shape)) for part in parts]
    stride = 1 if on_device else sum(map(math.prod, shapes)) // limit + 1
    read = [_of_array(part, limit) for part in parts[::stride]]
    sums = [column.sums for column in read]
    widths: Any = [shape[1] for shape in shapes for _ in range(shape[0]) if len(shape) > 1] or None
    if len(parts) == 1 and widths:
        widths = widths[0]
    return _Column(
        read[0].kind,
        sum(shape[0] for shape in shapes),
        widths,
        sys.modules["torch"].cat(sums) if on_device else list(itertools.chain(*sums)),
        stride == 1 and all(column.is_whole for column in read),
    )


def _of_array(value: Any, limit: int) -> _Column:
    is_nested, on_device = getattr(value, "is_nested", False), _is_on_device(value)
    shape = (len(value),) if is_nested else tuple(map(int, value.shape))
    widths = shape[1] if len(shape) > 1 else None
    if is_nested and not on_device:
        widths = value.offsets().diff().tolist()
    stride = 1 if on_device or is_nested else math.prod(shape) // limit + 1
    stride = max(stride, 1 if is_nested else -(-shape[0] // _MAX_SUMS))
    sums = _row_sums(value[::stride] if stride > 1 else value)
    kind = f"{value.dtype}:{value.ndim}"
    return _Column(kind, shape[0], widths, sums if on_device else sums.tolist(), stride == 1)


def _of_list(value: Any) -> _Column:
    rows = value[:_MAX_ROWS]
    has_tokens = any(hasattr(row, "__len__") and not isinstance(row, (str, bytes)) for row in rows)
    widths = [0 if row is None else len(row) for row in rows] if has_tokens else None
    stride = sum(widths or ()) // _MAX_LIST_ELEMENTS + 1
    try:
        sums: Any = [_row_sum(row) for row in rows[::stride]]
    except TypeError:  # objects of the job
        return _Column(type(rows[0]).__name__, len(value), widths, [], is_whole=False, is_list=True)
    if any(hasattr(row_sum, "detach") for row_sum in sums):
        sums = sys.modules["torch"].stack([row_sum.detach().double() for row_sum in sums])
        sums = sums if _is_on_device(sums) else sums.tolist()
    return _Column(type(rows[0]).__name__, len(value), widths, sums, stride == 1, is_list=True)


def _row_sums(value: Any) -> Any:
    """Sum each row: (B,) float64 on the array's own device.

    torch sums floats in their own precision: ten times as fast as in float64, and the same result
    for the same row.
    """
    axes = tuple(range(1, value.ndim))
    if not hasattr(value, "detach"):
        return value.sum(axes, dtype="f8")
    value = getattr(value, "_local_tensor", value).detach()
    if axes:
        is_half = value.is_floating_point() and value.element_size() < 4
        value = value.sum(axes, dtype=sys.modules["torch"].float32 if is_half else None)
    return value.double() if _is_on_device(value) else value


def _row_sum(row: Any) -> Any:
    """One number for a row of a Python list: its sum, or a checksum of the start of a text.

    Raises TypeError for other objects: their ``str`` would run code of the job, and that of a
    tensor would wait for its device.
    """
    if row is None or isinstance(row, (int, float)):
        return row or 0
    if hasattr(row, "sum"):
        return row.sum() if hasattr(row, "detach") else float(row.sum())
    if isinstance(row, (list, tuple)):
        return sum(row)
    if isinstance(row, str):
        return zlib.crc32(row[:_MAX_TEXT].encode(errors="replace"), len(row))
    if isinstance(row, bytes):
        return zlib.crc32(row[:_MAX_TEXT], len(row))
    raise TypeError(type(row).__name__)


def _insert_fetched(columns: Iterable[_Column], host: Any) -> None:
    """Store the row sums that arrived from a device, all columns in one array."""
    values = iter(host.tolist())
    for column in columns:
        if type(column.sums) is not list:
            column.sums = list(itertools.islice(values, len(column.sums)))


def _fields(columns: dict[str, _Column], num_unread: int) -> Iterator[tuple[str, str, float]]:
    """Yield (field, column, value) of a batch; column "" means the complete batch."""
    _leave_out_padding(columns)
    whole = {name: column.sums for name, column in columns.items() if column.is_whole}
    mask, groups = _first(_MASKS, whole), _first(_GROUPS, whole)
    ids = _first(_IDS, whole) or groups
    num_rows = max((c.num_rows for n, c in columns.items() if n == (mask or ids or n)), default=0)
    shown = [(name, column) for name, column in sorted(columns.items()) if name != _TAIL]
    lengths = [(name, column.num_rows, column.widths) for name, column in shown]
    yield "num_rows", "", num_rows
    yield "num_unread", "", num_unread
    yield "schema", "", zlib.crc32(str([(name, column.kind) for name, column in shown]).encode())
    yield "shapes", "", zlib.crc32(str(lengths).encode())
    if ids:
        yield "order", ids, hash(tuple(whole[ids])) % LEDGER_MODULUS
    for name in {ids, groups} - {""}:
        yield "multiset", name, sum(_mixed(whole[name])) % LEDGER_MODULUS
    if groups:
        sizes = Counter(whole[groups]).values()
        yield from (("num_groups", groups, len(sizes)), ("smallest_group", groups, min(sizes)))
        yield "largest_group", groups, max(sizes)
    if mask:
        widths = columns[mask].widths or 1
        yield "mask_sum", mask, sum(whole[mask])
        yield "mask_size", mask, sum(widths) if isinstance(widths, list) else widths * num_rows
    for name, num_wrong in _misaligned(columns, mask, num_rows):
        yield "num_misaligned", name, num_wrong
    samples = _mixed(whole[ids]) if ids else []
    for name, column in shown:
        finite = [value if math.isfinite(value) else 0.5 for value in column.sums]
        yield "num_nonfinite", name, sum(map(operator.ne, finite, column.sums))
        if not column.is_whole:
            yield "num_sampled", name, len(finite)
        elif name != ids and len(finite) == len(samples):
            rows = _mixed(finite)
            yield "values", name, sum(rows) % LEDGER_MODULUS
            yield "aligned", name, sum(map(operator.mul, rows, samples)) % LEDGER_MODULUS


def _leave_out_padding(columns: dict[str, _Column]) -> None:
    padding = columns.pop(_PADDING, None)
    is_real = [not is_padding for is_padding in padding.sums] if padding else [True]
    for column in () if all(is_real) else columns.values():
        if len(column.sums) == len(is_real):
            column.sums, column.num_rows = (
                list(itertools.compress(column.sums, is_real)),
                sum(is_real),
            )
            if isinstance(column.widths, list):
                column.widths = list(itertools.compress(column.widths, is_real))
            if column.texts:
                column.texts = list(itertools.compress(column.texts, is_real))


def _misaligned(columns: dict[str, _Column], mask: str, num_rows: int) -> Iterator[tuple[str, int]]:
    """Yield (column, rows of wrong length) for columns with a value per token or row."""
    widths: Any = columns[mask].widths if mask else None
    tokens = {n: c for n, c in columns.items() if _PER_TOKEN.search(n) and c.widths is not None}
    # ROLL has log-probs of the S - 1 predicted tokens and a mask of all S tokens
    is_padded = isinstance(widths, int)
    if is_padded and tokens and all(c.widths == widths - 1 for c in tokens.values()):
        widths -= 1
    for name, column in columns.items():
        if name in tokens or _PER_ROW.match(name):
            if column.num_rows != num_rows:
                yield name, max(num_rows, column.num_rows)
            elif name in tokens and is_padded and isinstance(column.widths, int):
                yield name, num_rows * (column.widths != widths)
            elif name in tokens and isinstance(widths, list) and isinstance(column.widths, list):
                yield name, sum(map(operator.ne, column.widths, widths))
    lengths = columns.get(_first(_LENGTHS, columns))
    if mask and lengths is not None:
        yield mask, sum(map(operator.gt, columns[mask].sums, lengths.sums))


def _is_on_device(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"


def _first(names: Iterable[str], by_name: Mapping[str, Any]) -> str:
    return next((name for name in names if name in by_name), "")


def _mixed(rows: list[float]) -> list[int]:
    """A hash for each row. Sums of Python's own hashes would cancel: they are nearly linear."""
    hashes = map(hash, zip(rows, strict=True))
    return [number * number % LEDGER_MODULUS for number in hashes]
