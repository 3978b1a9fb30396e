"""Writes a snapshot of the device's allocator, if the job allows it and the agent requests it.

``DFX_MEMORY_SNAPSHOT=1`` allows it. The agent requests it with a file next to the segment, and the
guest's own thread looks for that file once a second. Listing all blocks blocks the job: 0.1 s and
more if there are many. The file is a pickle in the format of torch's viewer
(pytorch.org/memory_viz).
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from dfx_agent.shim import stacks
from dfx_agent.shim.memory_points import ACCELERATORS, EmitGauge
from dfx_agent.wire import variables
from dfx_agent.wire.segment import SNAPSHOT_SUFFIX, SUFFIX, WANTED_SUFFIX

MAX_BYTES = 64 << 20
GAUGE = "patch/memory_snapshot"


class AllocatorSnapshot:
    """Handles requests; call ``poll`` about once a second."""

    def __init__(self) -> None:
        self._is_allowed = variables.MEMORY_SNAPSHOT.value()
        self._announced_in = ""

    def poll(self, emit_gauge: EmitGauge, segment: str) -> None:
        """Announce that snapshots are allowed, and write one if it was requested; may raise."""
        if not self._is_allowed:
            return
        if self._announced_in != segment:
            self._announced_in = segment
            emit_gauge(GAUGE, 1.0)
        stem = segment.removesuffix(SUFFIX)
        try:
            os.unlink(stem + WANTED_SUFFIX)
        except FileNotFoundError:
            return
        if not write_snapshot(stem):
            emit_gauge(GAUGE, -1.0)


def write_snapshot(stem: str) -> bool:
    """Replace ``<stem>.snapshot`` (mode 0600, at most 64 MiB); False on failure."""
    import pickle  # noqa: PLC0415 (loaded only on request)

    draft = f"{stem}{SNAPSHOT_SUFFIX}.tmp"
    try:
        snapshot = next((s for name in ACCELERATORS if (s := _snapshot(name)) is not None), None)
        if snapshot is None:
            return False
        fd = os.open(draft, stacks.FLAGS, 0o600)
        with os.fdopen(fd, "wb") as file:
            pickle.dump(snapshot, _Bounded(file))
        os.rename(draft, stem + SNAPSHOT_SUFFIX)
    except Exception:  # noqa: BLE001 (never into the job)
        with contextlib.suppress(OSError):  # a partial file uses space that may be scarce
            os.unlink(draft)
        return False
    return True


class _Bounded:
    """A file with a size limit, so that a snapshot that is too large is not written completely."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MAX_BYTES

    def write(self, data: Any) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise OverflowError
        self._file.write(data)


def _snapshot(name: str) -> Any:
    """Snapshot of an accelerator that this process uses; None for any other."""
    module = sys.modules.get(f"torch.{name}")
    if module is None or not module.is_initialized():
        return None
    ask = getattr(getattr(module, "memory", None), "_snapshot", None)
    return None if ask is None else ask()
