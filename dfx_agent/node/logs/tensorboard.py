"""TensorBoard event files: scalars only, read without TensorBoard, also packed.

A file is a sequence of TFRecords: length (8 bytes, little-endian), its CRC (4), a protobuf Event,
its CRC (4). A record that is cut off, or whose CRCs do not fit, ends the file: where the next one
begins is not sure. Field numbers are those of tensorflow/core/util/event.proto,
framework/summary.proto and framework/tensor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO

from dfx_agent.node.logs.folders import files_below
from dfx_agent.node.logs.lines import DAMAGE, open_bytes
from dfx_agent.node.logs.run import NotALogError, Notes, Record
from dfx_agent.node.logs.step_window import StepWindow

_POLYNOMIAL = 0x82F63B78  # reflected
_MASK_DELTA = 0xA282EAD8
_EVENT_STEP, _EVENT_SUMMARY = 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR = 1, 2, 8
_TENSOR_TYPE, _TENSOR_CONTENT, _TENSOR_FLOATS, _TENSOR_DOUBLES = 1, 4, 5, 6
_TYPE_DOUBLE = 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# what a summary of scalars can never need; a length beyond it is damage
_MAX_RECORD_BYTES = 64 << 20
_HEADER_BYTES, _CRC_BYTES = 12, 4
# it takes 0.1 s for a MiB: what is larger, pictures and audio, is checked if it holds scalars
_MAX_CHECKED_BYTES = 4 << 10
# tags are written one after the other: a step is complete when so much came behind it
_MAX_VALUES_HELD = 200_000

Field = int | bytes


def read_tensorboard(path: Path, notes: Notes) -> Iterator[Record]:
    """One file, or the files of a folder in the order they were begun (each a new attempt)."""
    files = _event_files(path, notes)
    if not files:
        raise NotALogError(f"no events.out.tfevents.* file in {path}{notes.in_brackets}")
    window = StepWindow(notes, _MAX_VALUES_HELD, _MAX_VALUES_HELD)
    num_read = 0
    for file in files:
        for record in chain(_read_file(file, window, notes), window.rest()):
            num_read += 1
            yield record
    if not num_read:
        notes.add("no scalar was logged")


def _event_files(path: Path, notes: Notes) -> list[Path]:
    """Of a folder those right in it, else those below; names sort by the time of creation."""
    if not path.is_dir():
        return [path]
    below = files_below(path, lambda file, why: notes.add(why, file))
    files = sorted(path.glob("*tfevents*")) or sorted(f for f in below if "tfevents" in f.name)
    # also packed while the file itself is still there: it is read once
    files = [file for file in files if file.suffix != ".gz" or file.with_suffix("") not in files]
    return [file for file in files if is_of_folder(file.name)] or files


def is_of_folder(name: str) -> bool:
    """Whether TensorBoard named this file: all such files of a folder are attempts of one run."""
    return name.startswith("events") and "tfevents" in name


def _read_file(path: Path, window: StepWindow, notes: Notes) -> Iterator[Record]:
    num_records = 0
    with open_bytes(path) as file:
        try:
            for record, crc in _records(file):
                step, scalars = _event(record)
                if scalars or len(record) <= _MAX_CHECKED_BYTES:
                    _check(record, crc)
                if scalars:
                    yield from window.add(step, scalars)
                num_records += 1
            if not file.tell():
                notes.add("is empty", path.name)
        except EOFError:
            notes.cut("is cut off: read up to there", path.name)
        except (ValueError, IndexError, struct.error, *DAMAGE):
            read = f"its first {num_records:,} records are read, the rest is not"
            notes.cut(f"is damaged: {read}", path.name)


def _records(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Read the records and check each CRC. EOFError if one is cut, ValueError for a bad length."""
    while header := file.read(_HEADER_BYTES):
        if len(header) < _HEADER_BYTES:
            raise EOFError
        length, crc = struct.unpack("<QI", header)
        _check(header[:-_CRC_BYTES], crc)
        if length > _MAX_RECORD_BYTES:
            raise ValueError("record is longer than any")
        data = file.read(length + _CRC_BYTES)
        if len(data) < length + _CRC_BYTES:
            raise EOFError
        yield data[:length], struct.unpack_from("<I", data, length)[0]


def _check(data: bytes, crc: int) -> None:
    if masked_crc32c(data) != crc:
        raise ValueError("the CRC does not fit")


def _event(record: bytes) -> tuple[int, dict[str, float]]:
    step, scalars = 0, {}
    for number, field in _fields(record):
        if number == _EVENT_STEP and isinstance(field, int):
            step = field if field < 1 << 63 else field - (1 << 64)
        elif number == _EVENT_SUMMARY and isinstance(field, bytes):
            for inner, value in _fields(field):
                if inner == _SUMMARY_VALUE and isinstance(value, bytes):
                    scalars.update(_scalar(value))
    return step, scalars


def _scalar(message: bytes) -> dict[str, float]:
    """{tag: value}, empty for a value that is no scalar."""
    tag, value = "", None
    for number, field in _fields(message):
        if isinstance(field, int):
            continue
        if number == _VALUE_TAG:
            tag = field.decode("utf-8", "replace")
        elif number == _VALUE_SIMPLE:
            (value,) = struct.unpack("<f", field)
        elif number == _VALUE_TENSOR:
            value = _tensor(field)
    return {} if value is None else {tag: value}


def _tensor(message: bytes) -> float | None:
    """The value of a tensor with one element of type float or double."""
    is_double, content = False, b""
    for number, field in _fields(message):
        if number == _TENSOR_TYPE:
            is_double = field == _TYPE_DOUBLE
        elif number in {_TENSOR_CONTENT, _TENSOR_FLOATS, _TENSOR_DOUBLES} and field:
            content = field if isinstance(field, bytes) else content
    if len(content) != (8 if is_double else 4):
        return None
    value: float = struct.unpack("<d" if is_double else "<f", content)[0]
    return value


def _fields(message: bytes) -> Iterator[tuple[int, Field]]:
    """(field number, value): an int for a varint, raw bytes for the rest."""
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        kind = key & 7
        if kind == _VARINT:
            value, offset = _varint(message, offset)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, offset = _varint(message, offset)
        elif kind in {_FIXED64, _FIXED32}:
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if offset + length > len(message):
            raise ValueError("field is longer than its message")
        yield key >> 3, message[offset : offset + length]
        offset += length


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, offset
        if shift > 63:
            raise ValueError("varint is too long")


def _entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ _POLYNOMIAL * (value & 1)
    return value


_TABLE = tuple(map(_entry, range(256)))


def crc32c(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The checksum of event files: CRC-32C, rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
