"""Whether the agent still sees: a reading that stands, or fails, shows from every other thread."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback

from dfx_agent.node.host.processor_time import thread_times
from dfx_agent.snapshot import Blindness
from dfx_agent.snapshot.faults import BLIND_AFTER, Faults

# a loaded machine may keep a sound agent from reading for some seconds
SLOWEST_SECONDS = 10.0

_PATIENCE_SECONDS, _SHORT_PATIENCE_SECONDS = 1.0, 0.02
_LONG_READING_SECONDS = 3.0
_STARVED_SHARE = 0.5  # of the time, waiting for a CPU: the agent's code is not the reason
_logger = logging.getLogger("dfx_agent.agent")


class Watchdog:
    """Follows the readings of one thread, and what of them failed."""

    def __init__(self, faults: Faults, period_seconds: float) -> None:
        self.read_seconds: float | None = None
        self._faults = faults
        self.limit_seconds = max(BLIND_AFTER * period_seconds, SLOWEST_SECONDS)
        self._reader: threading.Thread | None = None
        self._begun = self._done = time.monotonic()
        self._begun_seconds = time.time()
        self._waited_before = 0.0
        self._is_reading = False
        self._is_said = False

    def follow(self, reader: threading.Thread | None) -> None:
        """From now on this thread must read; nobody must with None."""
        self._reader = reader
        self._done, self._begun_seconds = time.monotonic(), time.time()

    def begin(self) -> None:
        self._begun, self._is_reading = time.monotonic(), True
        self._waited_before = self._waited_seconds()

    def end(self) -> None:
        """Everything was read, or what failed of it is known to ``faults``."""
        self._done, self.read_seconds = time.monotonic(), time.time()
        self._is_reading = self._is_said = False

    @property
    def patience_seconds(self) -> float:
        """How long another thread may wait for a reading to end."""
        elapsed = time.monotonic() - self._begun
        is_long = self._is_reading and elapsed > _LONG_READING_SECONDS
        return _SHORT_PATIENCE_SECONDS if is_long else _PATIENCE_SECONDS

    def stands(self) -> Blindness | None:
        """Since when nothing has been read, where that is for too long."""
        if self._reader is None or time.monotonic() - self._done <= self.limit_seconds:
            return None
        reason, place = self._starved(), ""
        if not reason:
            frames = self._frames()
            place = f"; it is at\n{''.join(frames)}" if frames else ""
            where = frames[-1].split("\n")[0].strip() if frames else "it is gone"
            reason = f"the reading does not end ({where})"
        if not self._is_said:
            self._is_said = True
            seconds = time.monotonic() - self._done
            _logger.error("nothing has been read for %.0f s: %s%s", seconds, reason, place)
        return Blindness(self.read_seconds or self._begun_seconds, reason)

    def blindness(self) -> Blindness | None:
        """None while everything was read and judged within three periods."""
        return self.stands() or self._faults.blindness()

    def _starved(self) -> str:
        """That the reader waits for a CPU, and what to do; "" if that is not the reason."""
        seconds = time.monotonic() - self._begun
        share = min(1.0, (self._waited_seconds() - self._waited_before) / seconds)
        if share < _STARVED_SHARE:
            return ""
        return (
            f"the agent gets too little CPU: it waited for one during {100 * share:.0f} % "
            f"of the last {seconds:.0f} s. Raise its priority (`renice -n -5 -p {os.getpid()}`), "
            "or run fewer processes on this machine"
        )

    def _waited_seconds(self) -> float:
        """How long the reader has been runnable without a CPU; 0 if the kernel does not count."""
        thread = self._reader.native_id if self._reader else None
        times = thread_times(os.getpid(), thread) if thread else None
        return times.delayed_ns / 1e9 if times else 0.0

    def _frames(self) -> list[str]:
        """Where the reader stands now, outermost call first."""
        frames = sys._current_frames()  # noqa: SLF001 (the one way to see another thread)
        frame = frames.get(self._reader.ident or 0) if self._reader else None
        return traceback.format_stack(frame) if frame else []
