"""A snapshot of the device's allocator, where the job allows it and the agent asks for it.

``DFX_MEMORY_SNAPSHOT=1`` allows it. The agent asks by a file beside the segment, as it asks a guest
to leave; the guest's own thread looks for it once a second. Listing all blocks holds the
interpreter for as long as it takes: 0.1 s and more where there are many. The file is a pickle as
torch's own viewer takes it (pytorch.org/memory_viz).
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from dfx_agent.shim import stacks
from dfx_agent.shim.held_memory import ACCELERATORS, EmitGauge
from dfx_agent.wire import variables
from dfx_agent.wire.segment import SNAPSHOT_SUFFIX, SUFFIX, WANTED_SUFFIX

MAX_BYTES = 64 << 20
GAUGE = "patch/memory_snapshot"


class SnapshotKeeper:
    """``look`` about once a second."""

    def __init__(self) -> None:
        self._is_allowed = variables.MEMORY_SNAPSHOT.value()
        self._told_in = ""

    def look(self, emit_gauge: EmitGauge, segment: str) -> None:
        """Say that it may be asked for, and write it when it was; may raise."""
        if not self._is_allowed:
            return
        if self._told_in != segment:
            self._told_in = segment
            emit_gauge(GAUGE, 1.0)
        stem = segment.removesuffix(SUFFIX)
        try:
            os.unlink(stem + WANTED_SUFFIX)
        except FileNotFoundError:
            return
        if not write_snapshot(stem):
            emit_gauge(GAUGE, -1.0)


def write_snapshot(stem: str) -> bool:
    """Replace ``<stem>.snapshot`` (mode 0600, at most 64 MiB); False if not."""
    import pickle  # noqa: PLC0415 (who is never asked does not load it)

    draft = f"{stem}{SNAPSHOT_SUFFIX}.tmp"
    try:
        taken = next((s for name in ACCELERATORS if (s := _snapshot(name)) is not None), None)
        if taken is None:
            return False
        fd = os.open(draft, stacks.FLAGS, 0o600)
        with os.fdopen(fd, "wb") as file:
            pickle.dump(taken, _Bounded(file))
        os.rename(draft, stem + SNAPSHOT_SUFFIX)
    except Exception:  # noqa: BLE001 (never into the job)
        with contextlib.suppress(OSError):  # half of one takes room where there may be none
            os.unlink(draft)
        return False
    return True


class _Bounded:
    """A file that takes so much and no more: what is too large is not made as a whole first."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MAX_BYTES

    def write(self, data: Any) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise OverflowError
        self._file.write(data)


def _snapshot(name: str) -> Any:
    """Of an accelerator that this process uses; None of another."""
    module = sys.modules.get(f"torch.{name}")
    if module is None or not module.is_initialized():
        return None
    ask = getattr(getattr(module, "memory", None), "_snapshot", None)
    return None if ask is None else ask()
