"""Measures how late the event loops of this process respond, and which code blocks them.

A thread of the guest asks each running loop ten times a second to call back (twenty times if the
loop was blocked recently). The delay of the callback is the lag. If the callback is overdue, the
thread examines the stack of the loop's thread. This works with any loop that has
``call_soon_threadsafe`` (asyncio, uvloop), patches nothing, and finds loops that ran before the
guest was loaded (running_loops.py).
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Collection
from types import CodeType
from typing import Any

from dfx_agent.shim import recorder
from dfx_agent.shim.frames import codes_of, threads_now
from dfx_agent.shim.heap import HeapSampler
from dfx_agent.shim.running_loops import depth, running_loops, thread_of
from dfx_agent.wire.records import FAILED, LOOP_HELD, LOOP_LAG, NO_STEP

ASK_SECONDS, ASK_OFTEN_SECONDS = 0.1, 0.05
_RECENT_SECONDS = 60.0
_BLOCKED_SECONDS = 0.05  # an overdue callback is examined after this long
_EXAMINE_SECONDS = 0.02  # pause between two examinations
_UNANSWERED_SECONDS = 1.0
_MIN_REPORTED_SECONDS = 0.1  # code that blocks a loop for less is not reported
_FIND_SECONDS, _FIND_SELDOM_SECONDS = 1.0, 5.0
_OFTEN_FOR_SECONDS = 30.0
_MAX_THREADS, _MAX_NAMES, _MAX_CHARS = 64, 64, 150
# code that blocks a loop for so long gets a second set of names, if short blocks used up the first
_LONG_SECONDS = 1.0
_NUM_THREADS_FOR_MANY = 4

_CO_COROUTINE = 0x80 | 0x200  # inspect.CO_COROUTINE, CO_ASYNC_GENERATOR
_ASYNCIO = f"{os.sep}asyncio{os.sep}"
_STDLIB = os.path.dirname(os.__file__)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# library files in which an idle thread waits
_RESTING = ("threading", "selectors", "queue", "socket", "ssl", "subprocess", "concurrent/futures")

OTHERS, NO_TURN = "(other holders)", "(nobody: the loop's thread had no turn)"
NO_PROCESSOR = "(the host: no processor for the loop's thread)"
_MIN_NO_PROCESSOR_RATIO = 0.1  # of the time that a loop was blocked, spent waiting for a CPU


class LoopMonitor:
    """One thread per process, started with the first recorder, if asyncio is imported."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._loops: dict[int, _Loop] = {}
        self._names: set[str] = set()
        self._next_find = self._began = 0.0
        self._heap = HeapSampler()

    def start(self) -> None:
        if self._thread is None:
            self._over = threading.Event()
            self._began = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="dfx-loops", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread; it may take 0.2 s."""
        thread, self._thread = self._thread, None
        self._over.set()
        self._loops.clear()
        if thread is not None and thread is not threading.current_thread():
            thread.join(0.2)

    def _run(self) -> None:
        over = self._over
        while True:
            pause_seconds = self._pause_seconds()
            due_ns = time.monotonic_ns() + int(pause_seconds * 1e9)
            if over.wait(pause_seconds):
                return
            writer = recorder.current
            if writer is not None:
                try:
                    self._check(writer, due_ns)
                    if "torch" not in sys.modules:  # else the thread that watches torch asks
                        self._heap.sample(writer.gauge)
                except Exception:  # noqa: BLE001 (never into the job)
                    writer.count_error()

    def _pause_seconds(self) -> float:
        if not self._loops:
            is_young = time.monotonic() - self._began < _OFTEN_FOR_SECONDS
            return _FIND_SECONDS if is_young else _FIND_SELDOM_SECONDS
        loops = self._loops.values()
        if any(loop.is_late for loop in loops):
            return _EXAMINE_SECONDS
        recent_ns = time.monotonic_ns() - _RECENT_SECONDS * 1e9
        was_blocked = any(loop.blocked_ns > recent_ns for loop in loops)
        return ASK_OFTEN_SECONDS if was_blocked else ASK_SECONDS

    def _check(self, writer: recorder.Recorder, due_ns: int) -> None:
        now = time.monotonic()
        if now >= self._next_find and "asyncio" in sys.modules:
            self._next_find = now + (_FIND_SELDOM_SECONDS if self._loops else 0.0)
            for loop, ident in running_loops():
                tracked = self._loops.get(id(loop))
                if tracked is None or tracked.loop() is not loop:
                    self._loops[id(loop)] = _Loop(loop, ident)
        for key, tracked in list(self._loops.items()):
            if not tracked.poll(writer, due_ns, self._limit_name):
                del self._loops[key]

    def _limit_name(self, name: str, seconds: float) -> str:
        """The name, or OTHERS if too many different names were used already."""
        room = _MAX_NAMES * (2 if seconds >= _LONG_SECONDS else 1)
        if name not in self._names and len(self._names) >= room:
            return OTHERS
        self._names.add(name)
        return name


class _Loop:
    """One running event loop. It gets the next request when it has answered the last one."""

    def __init__(self, loop: Any, ident: int | None) -> None:
        self.loop = weakref.ref(loop)
        self._ident = ident
        # False for a loop in C until its first answer shows which thread runs it
        self._has_frames = ident is not None
        self._num_under: int | None = None
        self._asked_ns = 0  # 0: no request is pending
        self._answered_ns = 0
        self.is_late = False
        self.blocked_ns = 0  # when the loop was last blocked, 0 for never
        # (begin, end, code) of the pending request
        self._blocks: list[tuple[int, int, str]] = []
        self._native_id = 0
        self._delayed_ns = 0  # CPU wait of the loop's thread when the delay was noticed
        self._reported_ns = 0  # time of the last report about a missing answer

    def poll(self, writer: recorder.Recorder, due_ns: int, limit_name: Any) -> bool:
        """Send a request, or find out what blocks the loop. False if the loop has stopped.

        ``due_ns`` is when this poll was planned. Code that does not release the GIL delays the
        poll too. If such code runs in the loop's thread, it has blocked the loop since ``due_ns``.
        """
        loop = self.loop()
        if loop is None or loop.is_closed() or not loop.is_running():
            return False
        now_ns, asked_ns = time.monotonic_ns(), self._asked_ns
        if asked_ns and now_ns - asked_ns >= _BLOCKED_SECONDS * 1e9:
            self.is_late = True
            self._add_block(asked_ns, now_ns, self._blocking_code(loop))
            self._report_unanswered(writer, asked_ns, now_ns, limit_name)
        elif not asked_ns:
            self._report_blocks(writer, limit_name)
            self.is_late = now_ns - due_ns >= _BLOCKED_SECONDS * 1e9
            code = self._blocking_code(loop) if self.is_late else NO_TURN
            # time before the last answer belongs to the lag of that answer
            asked_ns = now_ns if code == NO_TURN else max(due_ns, self._answered_ns)
            self._asked_ns = asked_ns
            if asked_ns < now_ns:
                self._add_block(asked_ns, now_ns, code)
            loop.call_soon_threadsafe(self._answer, writer, asked_ns)
        return True

    def _blocking_code(self, loop: Any) -> str:
        if self._ident is None:
            self._ident, self._num_under = thread_of(loop)
        return NO_TURN if self._ident is None else blocking_code(self._ident, self._num_under)

    def _answer(self, writer: recorder.Recorder, asked_ns: int) -> None:
        """Record the lag; called by the event loop."""
        try:
            if not self._has_frames:
                self._ident, self._num_under = threading.get_ident(), depth(sys._getframe(1))  # noqa: SLF001
                self._has_frames = True
            now_ns = time.monotonic_ns()
            self._answered_ns, self._asked_ns = now_ns, 0
            self._native_id = thread = writer.thread_id()
            lag_seconds, step = (now_ns - asked_ns) / 1e9, writer.step_now()
            writer.emit(asked_ns, now_ns, lag_seconds, step, 0, 0, thread, LOOP_LAG, 0)
        except Exception:  # noqa: BLE001 (never into the job)
            writer.count_error()

    def _report_unanswered(
        self, writer: recorder.Recorder, asked_ns: int, now_ns: int, limit_name: Any
    ) -> None:
        """Record, once a second, that a loop has not answered; it may never do so."""
        if now_ns - max(asked_ns, self._reported_ns) >= _UNANSWERED_SECONDS * 1e9:
            self._reported_ns = now_ns
            kind, seconds = LOOP_LAG | FAILED, (now_ns - asked_ns) / 1e9
            step = NO_STEP if writer.step is None else writer.step
            name_id = writer.name_id(limit_name(self._blocks[-1][2][:_MAX_CHARS], seconds))
            writer.emit(asked_ns, now_ns, seconds, step, 0, 0, 0, kind, name_id)

    def _add_block(self, asked_ns: int, now_ns: int, code: str) -> None:
        if not self._blocks:
            self._delayed_ns = delayed_ns(self._native_id)
        begin_ns = self._blocks[-1][1] if self._blocks else asked_ns
        if self._blocks and self._blocks[-1][2] == code:
            begin_ns = self._blocks.pop()[0]
        self._blocks.append((begin_ns, now_ns, code))

    def _report_blocks(self, writer: recorder.Recorder, limit_name: Any) -> None:
        """The loop has answered: record which code blocked it until then."""
        blocks, self._blocks = self._blocks, []
        if not blocks:
            return
        begin_ns, _, code = blocks.pop()
        blocks.append((begin_ns, max(begin_ns, self._answered_ns), code))
        if blocks[-1][1] - blocks[0][0] < _MIN_REPORTED_SECONDS * 1e9:
            return
        self.blocked_ns = blocks[-1][1]
        begin_ns, end_ns = blocks[0][0], blocks[-1][1]
        waited_ns = delayed_ns(self._native_id) - self._delayed_ns
        no_cpu = min(1.0, max(0, waited_ns) / (end_ns - begin_ns))
        no_cpu = no_cpu if no_cpu >= _MIN_NO_PROCESSOR_RATIO else 0.0
        step = NO_STEP if writer.step is None else writer.step
        rows = [(begin_ns, end_ns, NO_PROCESSOR, no_cpu)] if no_cpu else []
        rows += [(begin_ns, end_ns, code, 1.0 - no_cpu) for begin_ns, end_ns, code in blocks]
        for begin_ns, end_ns, code, share in rows:
            seconds = (end_ns - begin_ns) / 1e9 * share
            name_id = writer.name_id(limit_name(code[:_MAX_CHARS], seconds))
            writer.emit(begin_ns, end_ns, seconds, step, 0, 0, 0, LOOP_HELD, name_id)


def delayed_ns(thread: int) -> int:
    """How long this thread has waited for a CPU so far; 0 if the kernel does not provide it."""
    try:
        fd = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(fd, 128).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    finally:
        os.close(fd)


def blocking_code(ident: int, num_under: int | None = None) -> str:
    """Which code runs in the thread of a late loop: ``task > coroutine > function > last``.

    These are the task's coroutine, the innermost coroutine and function of the job, and the
    innermost code. If the thread only waits for the GIL, the result is the code that many other
    threads run. ``num_under`` is the number of frames below whatever the loop calls, for a loop
    that has no frames of its own.
    """
    chain = codes_of(ident)
    code = _blocking_call(chain, num_under)
    if code and not _is_resting(chain):
        return code
    return _common_code({ident, threading.get_ident()}) or code or NO_TURN


def _blocking_call(chain: list[CodeType], num_under: int | None) -> str:
    """Name the code that the loop has called; "" if the loop itself waits for an event."""
    if num_under is None:
        own = next((at for at, code in enumerate(chain) if _is_of_loop(code)), len(chain))
    else:
        own = max(0, len(chain) - num_under)
    called = chain[:own]
    if not called or len(called) == len(chain) or all(_ASYNCIO in c.co_filename for c in called):
        return ""
    coroutines = [code for code in called if code.co_flags & _CO_COROUTINE]
    task, nearest = (coroutines or called)[-1], _own(coroutines)
    function = _own(called) or called[0]
    parts = dict.fromkeys(map(code_name, (task, nearest or task, function, called[0])))
    return " > ".join(parts)


def _is_of_loop(code: CodeType) -> bool:
    return code.co_name in {"_run_once", "_run", "select", "run_forever", "run"} and (
        _ASYNCIO in code.co_filename or "selectors" in code.co_filename
    )


def _common_code(excluded: Collection[int]) -> str:
    """Code that at least four threads run at the same time; "" if there is none."""
    running: Counter[str] = Counter()
    for ident in threads_now()[:_MAX_THREADS]:
        chain = codes_of(ident) if ident not in excluded else []
        own = _own(chain)
        if own is not None and not _is_resting(chain):
            running[code_name(own)] += 1
    most = running.most_common(1)
    if not most or most[0][1] < _NUM_THREADS_FOR_MANY:
        return ""
    return f"many threads in {most[0][0]}"


def _is_resting(chain: list[CodeType]) -> bool:
    file = chain[0].co_filename
    return any(file.startswith(f"{_STDLIB}{os.sep}{name}") for name in _RESTING)


def _own(chain: list[CodeType]) -> CodeType | None:
    """The innermost code of the job, else of a package that the job uses, else None."""
    others = [c for c in chain if not c.co_filename.startswith((_STDLIB, "<frozen "))]
    own = (c for c in others if not any(part in c.co_filename for part in _INSTALLED))
    return next(own, others[0] if others else None)


def code_name(code: CodeType) -> str:
    file = os.path.basename(code.co_filename)
    return f"{getattr(code, 'co_qualname', code.co_name)} ({file})"
