"""Measures every millisecond how late an event loop is, which code held it, and which waited."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from types import CodeType

from dfx_agent.shim.event_loops import NO_TURN, blocking_code, code_name

BEAT_SECONDS = 0.001
LATE_SECONDS = 0.01
_LOOK_SECONDS = 0.005
_WAKE_SECONDS = 0.1
_LATE_NS = int(LATE_SECONDS * 1e9)
_MOST_STRETCHES = 1_000_000

Stretch = tuple[int, int]  # wanted, came: monotonic ns


class Heartbeat:
    """A timer of 1 ms in the running loop; ``late``: beats that came 10 ms late or more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self.due_ns = 0
        self.late: list[Stretch] = []
        self.num_beats = 0
        self.lags_ns: list[int] = []  # of the latest beats

    def start(self) -> None:
        self.due_ns = time.monotonic_ns() + int(BEAT_SECONDS * 1e9)
        self._handle = self._loop.call_later(BEAT_SECONDS, self._beat)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    async def idle_lag_seconds(self, seconds: float) -> float:
        """At 99 % of a loop in which nothing else runs, measured for so long."""
        self.lags_ns.clear()
        await asyncio.sleep(seconds)
        lags = sorted(self.lags_ns) or [0]
        return lags[min(len(lags) - 1, int(len(lags) * 0.99))] / 1e9

    def _beat(self) -> None:
        now_ns, due_ns = time.monotonic_ns(), self.due_ns
        self.num_beats += 1
        if len(self.lags_ns) < _MOST_STRETCHES:
            self.lags_ns.append(now_ns - due_ns)
        if now_ns - due_ns >= _LATE_NS and len(self.late) < _MOST_STRETCHES:
            self.late.append((due_ns, now_ns))
        self.start()


class Lookout:
    """A thread that names the code that runs in the loop while a beat is late: (from, to, code).

    Code that holds the interpreter lock delays this thread too. The code that the thread then sees
    has held the lock since the beat was due.
    """

    def __init__(self, heartbeat: Heartbeat, ours: Iterable[CodeType]) -> None:
        """Names of code that is ``ours`` are left out."""
        self._ours = {code_name(code) for code in ours}
        self.held: list[tuple[int, int, str]] = []
        self._heartbeat, self._ident = heartbeat, threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        wanted_ns = time.monotonic_ns() + int(_LOOK_SECONDS * 1e9)
        while not self._over.wait(_LOOK_SECONDS):
            now_ns = time.monotonic_ns()
            since_ns = min(self._heartbeat.due_ns, wanted_ns)
            if now_ns - since_ns >= _LATE_NS:
                who = blocking_code(self._ident)
                if who != NO_TURN:
                    self._note(since_ns, now_ns, who)
            wanted_ns = time.monotonic_ns() + int(_LOOK_SECONDS * 1e9)

    def _note(self, since_ns: int, now_ns: int, who: str) -> None:
        who = " > ".join(part for part in who.split(" > ") if part not in self._ours)
        if not who:
            return
        if self.held:
            begin_ns, end_ns, before = self.held[-1]
            since_ns = max(since_ns, end_ns)
            if before == who and since_ns == end_ns:
                self.held[-1] = begin_ns, now_ns, who
                return
        if len(self.held) < _MOST_STRETCHES:
            self.held.append((since_ns, now_ns, who))


class Traffic:
    """Tasks that do nothing but wake every 0.1 s; ``late``: wakes that came 10 ms late or more."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self._tasks: list[asyncio.Task[None]] = []
        self.late: list[Stretch] = []
        self.num_wakes = 0

    def start(self) -> None:
        starts = (_WAKE_SECONDS * n / self._num_tasks for n in range(self._num_tasks))
        self._tasks = [asyncio.create_task(self._pass(seconds)) for seconds in starts]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _pass(self, first_seconds: float) -> None:
        seconds = first_seconds
        while True:
            due_ns = time.monotonic_ns() + int(seconds * 1e9)
            await asyncio.sleep(seconds)
            now_ns, seconds = time.monotonic_ns(), _WAKE_SECONDS
            self.num_wakes += 1
            if now_ns - due_ns >= _LATE_NS and len(self.late) < _MOST_STRETCHES:
                self.late.append((due_ns, now_ns))
