"""What guests wrote of torch's flight recorder, beside their segments: the last collectives.

The files are a stranger's: sizes are bounded, and what does not read is left out whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from dfx_agent.node.segments.owned_files import HeldFolder
from dfx_agent.node.segments.stacks import read_text
from dfx_agent.wire.segment import SUFFIX

FLIGHT_SUFFIX = ".flight"

_MAX_GROUPS, _MAX_ENTRIES, _MAX_MEMBERS = 64, 64, 256
_MAX_TENSORS, _MAX_DIMENSIONS, _MAX_TEXT = 16, 16, 100
_MAX_NUMBER = 1 << 63
# as backends name the same thing: all_gather into a list and into one tensor match
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


class Entry(NamedTuple):
    """One collective as it was issued. ``created_ns`` is Unix time.

    ``sizes`` are those of the first tensors of ``num_tensors``; ``num_elements`` is of all.
    """

    sequence: int
    operation: str
    sizes: tuple[tuple[int, ...], ...]
    num_tensors: int
    num_elements: int
    dtypes: tuple[str, ...]
    created_ns: int
    is_finished: bool
    is_p2p: bool

    @property
    def tensors(self) -> str:
        """As in " [1048576] float32", " [8] [8] and 30 more bfloat16", "" for a barrier."""
        num_more = self.num_tensors - len(self.sizes)
        words = [str(list(size)) for size in self.sizes]
        words += [f"and {num_more} more"] if num_more > 0 else []
        return "".join(f" {word}" for word in (*words, *dict.fromkeys(self.dtypes)))


class GroupKey(NamedTuple):
    """One process group in all its ranks; ``members_crc`` as two groups may have one name."""

    backend: str
    name: str
    members_crc: int


@dataclass(frozen=True)
class RecordedGroup:
    """The last entries of one group in one rank, newest first; ``members`` None: not known."""

    description: str
    members: tuple[int, ...] | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class FlightRecord:
    """Of one process. ``time_ns``: when it was taken, on the host's monotonic clock.

    ``longest_gap_ns``: between two collectives, of those that the recorder still held.
    """

    time_ns: int
    rank: int
    groups: dict[GroupKey, RecordedGroup]
    longest_gap_ns: int = 0

    @cached_property
    def is_waiting(self) -> bool:
        """Whether something is unfinished."""
        return any(not e.is_finished for group in self.groups.values() for e in group.entries)


def read_flight(
    segment: str, since_ns: int, folder: HeldFolder | None = None
) -> FlightRecord | None:
    """What the guest of this segment wrote after ``since_ns``; None when there is nothing."""
    text = read_text(segment.removesuffix(SUFFIX) + FLIGHT_SUFFIX, folder)
    record = parse(text) if text else None
    return None if record is None or record.time_ns < since_ns else record


def parse(text: str) -> FlightRecord | None:
    """The guest's file; None when it is not one."""
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


def _entry(row: Sequence[Any]) -> Entry:
    sequence, operation, sizes, num_tensors, num_elements, dtypes, created_ns = row[:7]
    state, is_retired, is_p2p = row[7:10]
    name = _text(operation)
    return Entry(
        _number(sequence),
        _OPERATIONS.get(name, name),
        tuple(_numbers(size, _MAX_DIMENSIONS) for size in sizes[:_MAX_TENSORS]),
        _number(num_tensors),
        _number(num_elements),
        tuple(_DTYPES.get(_text(dtype), _text(dtype)) for dtype in dtypes[:_MAX_TENSORS]),
        _number(created_ns),
        # gloo's state stays "scheduled": what is over shows as retired only
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
