"""Writes the latest entries of torch's (or torch-npu's) flight recorder to a file by the segment.

A dump of the full ring takes 22 to 35 ms, most of it with the GIL. It is made once when the process
is blocked, and never while it continues. Without a recorder, or with an empty one, there is none.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from dfx_agent.shim import stacks
from dfx_agent.wire.segment import FLIGHT_SUFFIX, STACKS_SUFFIX, SUFFIX

MAX_BYTES = 192 * 1024

_STILL_SECONDS = 5.0
_MAX_GROUPS, _MAX_ENTRIES, _MAX_MEMBERS = 32, 16, 64
_MAX_TENSORS, _MAX_DIMENSIONS, _MAX_TEXT = 4, 8, 80
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
# paths in stacks: a dump queries events, which would invalidate a graph that is being captured
_CAPTURES = (
    b"cudagraph", b"cuda_graph", b"cuda/graphs", b"npugraph", b"npu_graph", b"npu/graphs",
)  # fmt: skip
# torch-npu's recorder (dump format 2.4) does not name operations: profiling_name is ""
_HCCL_DUMP, _UNNAMED = "_dump_hccl_trace_json", "hccl:collective"

# begin of the latest open span, number of spans, step, and sequence number of each process group:
# the same while the process is blocked
Mark = tuple[int | None, int, int | None, tuple[int, ...]]


class FlightWriter:
    """Writes one file each time the process is blocked; call ``note`` about once a second."""

    def __init__(self) -> None:
        self._mark: Mark | None = None
        self._since_ns = 0
        self._is_written = False

    def note(self, now_ns: int, mark: Mark) -> None:
        """Remember since when the mark has not changed."""
        if mark != self._mark:
            self._mark, self._since_ns, self._is_written = mark, now_ns, False

    def write_once(self, now_ns: int, mark: Mark, segment: str) -> bool:
        """Write if the mark has not changed for 5 s; return whether a file was written."""
        self.note(now_ns, mark)
        if self._is_written or now_ns - self._since_ns < _STILL_SECONDS * 1e9:
            return False
        self._is_written = True
        return write_flight(segment)


def write_flight(segment: str) -> bool:
    """Replace ``<segment without .seg>.flight`` (mode 0600, at most 192 KiB); False on failure."""
    stem = segment.removesuffix(SUFFIX)
    try:
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return False
        if not distributed.is_initialized() or _may_capture(stem):
            return False
        entries = _dump()
        text = json.dumps(_document(distributed, entries)).encode() if entries else b""
        if not 0 < len(text) <= MAX_BYTES:
            return False
        fd = os.open(f"{stem}{FLIGHT_SUFFIX}.tmp", stacks.FLAGS, 0o600)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
        os.rename(f"{stem}{FLIGHT_SUFFIX}.tmp", stem + FLIGHT_SUFFIX)
    except Exception:  # noqa: BLE001 (never into the job)
        return False
    return True


def _may_capture(stem: str) -> bool:
    with open(stem + STACKS_SUFFIX, "rb") as file:
        text = file.read(stacks.MAX_BYTES)
    return any(word in text for word in _CAPTURES)


def _dump() -> list[dict[str, Any]]:
    """Entries of all backends, each from the oldest to the latest."""
    c10d = sys.modules["torch._C._distributed_c10d"]
    dumps = [getattr(c10d, name) for name in _DUMPS if hasattr(c10d, name)]
    return [*(entry for dump in dumps for entry in _entries(dump)), *_dump_hccl()]


def _dump_hccl() -> list[dict[str, Any]]:
    """Entries of torch-npu; empty if it is not loaded or too old for a recorder."""
    extension = getattr(sys.modules.get("torch_npu"), "_C", None)
    dump = getattr(getattr(extension, "_distributed_c10d", None), _HCCL_DUMP, None)
    found = _entries(dump) if dump is not None else []
    return [{**entry, "profiling_name": entry["profiling_name"] or _UNNAMED} for entry in found]


def _entries(dump: Callable[[], bytes]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(dump()).get("entries") or []
    return entries


def _document(distributed: Any, entries: list[dict[str, Any]]) -> dict[str, Any]:
    members = _members(distributed)
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in reversed(entries):
        backend, _, operation = str(entry["profiling_name"]).rpartition(":")
        name, description = map(str, entry["process_group"])
        sequence, group_id = int(entry["collective_seq_id"]), entry.get("pg_id")
        group = groups.get((backend, name))
        if group is None:
            if len(groups) == _MAX_GROUPS:
                continue
            group = groups[backend, name] = _group(backend, name, description, members.get(name))
            group |= {"id": group_id, "lowest": sequence}
        if group["id"] != group_id or sequence > group["lowest"]:
            group["lowest"] = -1  # an earlier group of this name; older entries are ignored too
            continue
        group["lowest"] = sequence
        rows, is_finished = group["entries"], entry["retired"] or entry["state"] == "completed"
        if len(rows) < _MAX_ENTRIES:
            rows.append(_row(entry, operation, sequence))
        elif not is_finished:  # the oldest unfinished one, which the peers wait for
            rows[_MAX_ENTRIES:] = [_row(entry, operation, sequence)]
    # the newer half: a young job loads data and models between its first collectives
    issued_ns = sorted(int(e["time_created_ns"]) for e in entries)[len(entries) // 2 :]
    return {
        "format": 1,
        "time_ns": time.monotonic_ns(),
        "longest_gap_ns": max((b - a for a, b in pairwise(issued_ns)), default=0),
        "rank": distributed.get_rank(),
        "groups": list(groups.values()),
    }


def _group(backend: str, name: str, description: str, members: list[int] | None) -> dict[str, Any]:
    """``members_crc`` distinguishes groups of one name on disjoint ranks."""
    return {
        "backend": backend[:_MAX_TEXT],
        "name": name[:_MAX_TEXT],
        "description": description[:_MAX_TEXT],
        "members_crc": zlib.crc32(repr(members).encode()),
        "members": members if members and len(members) <= _MAX_MEMBERS else None,
        "entries": [],
    }


def _row(entry: dict[str, Any], operation: str, sequence: int) -> list[Any]:
    sizes = entry["input_sizes"] or entry["output_sizes"]
    dtypes = entry["input_dtypes"] or entry["output_dtypes"]
    return [
        sequence,
        operation[:_MAX_TEXT],
        [size[:_MAX_DIMENSIONS] for size in sizes[:_MAX_TENSORS]],
        len(sizes),
        sum(map(math.prod, sizes)),
        dtypes[:_MAX_TENSORS],
        int(entry["time_created_ns"]),
        entry["state"],
        bool(entry["retired"]),
        bool(entry["is_p2p"]),
    ]


def _members(distributed: Any) -> dict[str, list[int]]:
    """Global ranks by group name, from torch's own table and not from the recorder's."""
    world = distributed.distributed_c10d._world  # noqa: SLF001 (there is no other way)
    ranks, names = dict(world.pg_group_ranks), dict(world.pg_names)
    return {str(name): sorted(ranks[group]) for group, name in names.items() if group in ranks}
