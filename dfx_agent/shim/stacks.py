"""Writes the stacks of all Python threads into a file next to the segment.

``faulthandler`` writes them, and not ``sys._current_frames``: it takes no lock and allocates
nothing. ``sys._current_frames`` allocates under an interpreter lock (a deadlock if the collector
runs then, python/cpython#106883) and prolongs the life of the job's locals. faulthandler's limits
are 100 threads, latest first, and 100 frames. ``dump_traceback_later`` would work without the GIL,
but a process has only one of it, which belongs to the job. No source files are read.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from typing import Any

from dfx_agent.wire.segment import STACKS_SUFFIX, SUFFIX

MAX_BYTES = 64 * 1024

_MAX_NAMED = 200
_AFTER_SECONDS = (10, 30, 60, 120, 300)
_EVERY_SECONDS = 300
FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class StackWriter:
    """Writes the stacks while no new span begins: after 10, 30, 60, 120, 300 s, then every 300 s.

    The guest's own thread calls it about once a second.
    """

    def __init__(self) -> None:
        self._mark: object = None
        self._since_ns: int | None = None
        self._num_written = 0

    def write_if_stuck(self, now_ns: int, mark: object, segment: str) -> bool:
        """Write the stacks if ``mark`` has not changed for long enough; return whether it did."""
        # time since this mark was first seen, because a long stage reappears between short ones
        if self._since_ns is None or mark != self._mark:
            self._mark, self._since_ns, self._num_written = mark, now_ns, 0
        if now_ns - self._since_ns < _due_seconds(self._num_written) * 10**9:
            return False
        self._num_written += 1
        return write_stacks(segment)


def write_stacks(segment: str) -> bool:
    """Replace ``<segment without .seg>.stacks`` (mode 0600, at most 64 KiB); False on failure."""
    path = segment.removesuffix(SUFFIX) + STACKS_SUFFIX
    try:
        fd = os.open(path + ".tmp", FLAGS, 0o600)
        try:
            head = _head()
            os.write(fd, head)
            faulthandler.dump_traceback(fd, all_threads=True)
            _truncate_front(fd, len(head))
        finally:
            os.close(fd)
        os.rename(path + ".tmp", path)
    except Exception:  # noqa: BLE001 (never into the job)
        return False
    return True


def _due_seconds(num_written: int) -> int:
    """How long no span must have begun before the next write."""
    if num_written < len(_AFTER_SECONDS):
        return _AFTER_SECONDS[num_written]
    return _AFTER_SECONDS[-1] + _EVERY_SECONDS * (num_written - len(_AFTER_SECONDS) + 1)


def _head() -> bytes:
    """Process, time and names of threads, which faulthandler does not write."""
    main = threading.main_thread().ident or 0
    lines = [f"dfx-stacks 1 {os.getpid()} {time.monotonic_ns()} {main:#x}"]
    # copy the dict instead of threading.enumerate(), which takes a lock that the job may hold; read
    # attributes instead of properties, which may run the job's own code
    threads: dict[int, Any] = vars(threading)["_active"].copy()
    for ident, thread in list(threads.items())[:_MAX_NAMED]:
        state = vars(thread)
        name = " ".join(state.get("_name", "").split())[:64]
        lines.append(f"name {ident:#x} {state.get('_native_id') or 0} {name}")
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def _truncate_front(fd: int, head_bytes: int) -> None:
    """Remove the excess at the front, because the main thread is written last."""
    size, room = os.fstat(fd).st_size, MAX_BYTES - head_bytes
    if size > MAX_BYTES:
        _, _, tail = os.pread(fd, room, size - room).partition(b"\n")
        os.ftruncate(fd, head_bytes + os.pwrite(fd, tail, head_bytes))
