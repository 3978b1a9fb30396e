"""Reads dumps of torch's flight recorder, which guests wrote next to their segments.

The files cannot be trusted: sizes are bounded, and a file that does not parse is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from dfx_agent.facts.flight import FlightEntry, FlightRecord, GroupKey, RecordedGroup
from dfx_agent.node.segments.owned_files import HeldFolder
from dfx_agent.node.segments.stacks import read_text
from dfx_agent.wire.segment import FLIGHT_SUFFIX, SUFFIX

_MAX_GROUPS, _MAX_ENTRIES, _MAX_MEMBERS = 64, 64, 256
_MAX_TENSORS, _MAX_DIMENSIONS, _MAX_TEXT = 16, 16, 100
_MAX_NUMBER = 1 << 63
# backends name operations differently: all_gather into a list and into one tensor must match
_OPERATIONS = {
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce_coalesced": "all_reduce",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_reduce_barrier": "barrier",
}
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}


def read_flight(
    segment: str, since_ns: int, folder: HeldFolder | None = None
) -> FlightRecord | None:
    """The dump that the guest of this segment wrote after ``since_ns``; None if there is none."""
    text = read_text(segment.removesuffix(SUFFIX) + FLIGHT_SUFFIX, folder)
    record = parse(text) if text else None
    return None if record is None or record.time_ns < since_ns else record


def parse(text: str) -> FlightRecord | None:
    """Parse the guest's file; None if it is no such file."""
    try:
        document = json.loads(text)
        if document["format"] != 1:
            return None
        groups = dict(map(_group, document["groups"][:_MAX_GROUPS]))
        gap_ns = _number(document.get("longest_gap_ns", 0))
        return FlightRecord(_number(document["time_ns"]), _number(document["rank"]), groups, gap_ns)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _group(given: dict[str, Any]) -> tuple[GroupKey, RecordedGroup]:
    members = given["members"]
    key = GroupKey(_text(given["backend"]), _text(given["name"]), _number(given["members_crc"]))
    return key, RecordedGroup(
        _text(given["description"]),
        None if members is None else _numbers(members, _MAX_MEMBERS),
        tuple(map(_entry, given["entries"][:_MAX_ENTRIES])),
    )


def _entry(row: Sequence[Any]) -> FlightEntry:
    sequence, operation, sizes, num_tensors, num_elements, dtypes, created_ns = row[:7]
    state, is_retired, is_p2p = row[7:10]
    name = _text(operation)
    return FlightEntry(
        _number(sequence),
        _OPERATIONS.get(name, name),
        tuple(_numbers(size, _MAX_DIMENSIONS) for size in sizes[:_MAX_TENSORS]),
        _number(num_tensors),
        _number(num_elements),
        tuple(_DTYPES.get(_text(dtype), _text(dtype)) for dtype in dtypes[:_MAX_TENSORS]),
        _number(created_ns),
        # gloo's state stays "scheduled": only is_retired shows that it is complete
        is_retired is True or state == "completed",
        is_p2p is True,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return " ".join("".join(c if c.isprintable() else " " for c in value[:_MAX_TEXT]).split())


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise ValueError(value)
    return value


def _numbers(values: Iterable[Any], limit: int) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError(values)
    return tuple(map(_number, values[:limit]))
