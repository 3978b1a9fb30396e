"""What the guest in this very process has recorded, and how a job reports its checks."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist

from dfx_agent.shim import recorder
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    COLLECTIVE_WAIT,
    COUNT,
    FAILED,
    KIND_MASK,
    SCALAR,
    STAGE,
    STEP,
)

DEVICE = os.environ.get("DFX_TEST_DEVICE", "cpu")
RANK = int(os.environ.get("RANK", "0"))


class Seen(NamedTuple):
    """One record; ``number`` is the step, or a group's sequence number (-1 none)."""

    kind: int
    name: str | None
    value: float
    number: int
    span: int
    parent: int
    thread: int
    begin_ns: int
    end_ns: int
    is_blocking: bool
    has_failed: bool


_readers: dict[str, SegmentReader] = {}


def seen(*kinds: int) -> list[Seen]:
    """Records of these kinds (all, if none is named) since the last call."""
    if recorder.current is None:  # nothing yet: the first record makes the segment
        return []
    path = recorder.current.path
    reader = _readers.setdefault(path, SegmentReader(path))
    rows = [
        Seen(
            flagged & KIND_MASK, reader.name(name), value, number, span, parent, thread, t0, t1,
            bool(flagged & BLOCKING), bool(flagged & FAILED),
        )
        for _, t0, t1, value, number, span, parent, thread, flagged, name, _ in reader.poll(1 << 20)
    ]  # fmt: skip
    assert not reader.ring.num_lost, "the ring was overwritten: raise DFX_RING_RECORDS"
    return [row for row in rows if not kinds or row.kind in kinds]


def arrived() -> list[Seen]:
    """Everything since the last call; what lives on a device is written at a later step."""
    if DEVICE == "cuda" and recorder.current is not None:
        torch.cuda.synchronize()
        recorder.current._deferred.flush()
    return seen()


def collectives() -> list[Seen]:
    """Collectives and waits for them since the last call."""
    return seen(COLLECTIVE, COLLECTIVE_WAIT)


def stages(rows: Iterable[Seen]) -> list[str | None]:
    return [row.name for row in rows if row.kind == STAGE]


def steps(rows: Iterable[Seen]) -> list[int]:
    return [row.number for row in rows if row.kind == STEP]


def counted(rows: Iterable[Seen], name: str) -> float:
    return sum(row.value for row in rows if row.kind == COUNT and row.name == name)


def scalars(rows: Iterable[Seen], name: str) -> list[float]:
    return [row.value for row in rows if row.kind == SCALAR and row.name == name]


def num_guest_errors() -> int:
    assert recorder.current is not None
    return _readers[recorder.current.path].live_words()[4]


def open_now() -> list[str | None]:
    """Names of what is open in this process."""
    assert recorder.current is not None
    path = recorder.current.path
    reader = _readers.setdefault(path, SegmentReader(path))
    return [reader.name(row[9]) for row in reader.inflight()]


def join() -> None:
    """Into the group of all ranks; a rank that is missing is an error within 30 seconds."""
    from datetime import timedelta

    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(RANK)
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=30))


def leave() -> None:
    """Out of it; models of the checks are gone before (docs/limits.md)."""
    gc.collect()
    dist.destroy_process_group()


def report(checks: Iterable[Callable[[], None]]) -> None:
    """Run them in order; what each of them says goes to $DFX_TEST_REPORT, by name."""
    results = {}
    for check in checks:
        try:
            check()
            results[check.__name__] = ""
        except BaseException:  # noqa: BLE001
            results[check.__name__] = traceback.format_exc()
    with open(f"{os.environ['DFX_TEST_REPORT']}.{RANK}", "w") as file:
        json.dump(results, file)


def checks_of(module: str) -> list[Callable[[], None]]:
    """Functions ``check_*`` of a module, in the order of their lines."""
    return [value for name, value in vars(sys.modules[module]).items() if name.startswith("check_")]
