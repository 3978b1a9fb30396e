"""How late the event loops of this process wake, and who held them meanwhile.

A thread of the guest's own asks each running loop ten times a second to call back, twenty times
where it was held lately. How late the call comes is the lag. While an answer is missing the thread
looks where the loop's thread stands. It works with any loop that has ``call_soon_threadsafe``
(asyncio's, uvloop's), patches nothing, and finds loops that ran before it came (running_loops.py).
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
_LATELY_SECONDS = 60.0
_HELD_SECONDS = 0.05  # an answer that takes longer is looked into
_LOOK_SECONDS = 0.02  # how often
_UNANSWERED_SECONDS = 1.0
_TOLD_SECONDS = 0.1  # who holds a loop for less is not named
_FIND_SECONDS, _FIND_SELDOM_SECONDS = 1.0, 5.0
_OFTEN_FOR_SECONDS = 30.0
_MAX_THREADS, _MAX_NAMES, _MAX_CHARS = 64, 64, 150
# those who held a loop for a second find room when library code that was in the way took the names
_LONG_SECONDS = 1.0
_NUM_THREADS_FOR_MANY = 4

_CO_COROUTINE = 0x80 | 0x200  # inspect.CO_COROUTINE, CO_ASYNC_GENERATOR
_ASYNCIO = f"{os.sep}asyncio{os.sep}"
_STDLIB = os.path.dirname(os.__file__)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# where a thread stands that does nothing
_RESTING = ("threading", "selectors", "queue", "socket", "ssl", "subprocess", "concurrent/futures")

OTHERS, NO_TURN = "(other holders)", "(nobody: the loop's thread had no turn)"
NO_PROCESSOR = "(the host: no processor for the loop's thread)"
_LEAST_NO_ROOM = 0.1  # of the time that a loop was held, waiting for a processor


class LoopMonitor:
    """One thread, from the first recorder on; it costs nothing where asyncio is not imported."""

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
        """End the thread; at most a moment late."""
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
                    self._look(writer, due_ns)
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
            return _LOOK_SECONDS
        lately_ns = time.monotonic_ns() - _LATELY_SECONDS * 1e9
        was_held = any(loop.held_ns > lately_ns for loop in loops)
        return ASK_OFTEN_SECONDS if was_held else ASK_SECONDS

    def _look(self, writer: recorder.Recorder, due_ns: int) -> None:
        now = time.monotonic()
        if now >= self._next_find and "asyncio" in sys.modules:
            self._next_find = now + (_FIND_SELDOM_SECONDS if self._loops else 0.0)
            for loop, ident in running_loops():
                known = self._loops.get(id(loop))
                if known is None or known.loop() is not loop:
                    self._loops[id(loop)] = _Loop(loop, ident)
        for key, known in list(self._loops.items()):
            if not known.look(writer, due_ns, self._named):
                del self._loops[key]

    def _named(self, name: str, seconds: float) -> str:
        """The same, unless too many were named before."""
        room = _MAX_NAMES * (2 if seconds >= _LONG_SECONDS else 1)
        if name not in self._names and len(self._names) >= room:
            return OTHERS
        self._names.add(name)
        return name


class _Loop:
    """One running loop, asked again when it has answered."""

    def __init__(self, loop: Any, ident: int | None) -> None:
        self.loop = weakref.ref(loop)
        self._ident = ident
        # of a loop without frames of its own, known from its first answer on
        self._has_frames = ident is not None
        self._num_under: int | None = None
        self._asked_ns = 0  # 0: nothing is asked
        self._answered_ns = 0
        self.is_late = False
        self.held_ns = 0  # when it was held last, 0 never
        self._held: list[tuple[int, int, str]] = []  # from, to, by whom; of the answer that is due
        self._native_id = 0
        self._delayed_ns = 0  # when it was found to be late
        self._told_ns = 0  # when it was said last that no answer has come

    def look(self, writer: recorder.Recorder, due_ns: int, named: Any) -> bool:
        """Ask, or see who holds it; False when it runs no more.

        ``due_ns``: when we wanted to. Code that keeps the interpreter to itself holds us up too:
        who is then seen in the loop has held it since.
        """
        loop = self.loop()
        if loop is None or loop.is_closed() or not loop.is_running():
            return False
        now_ns, asked_ns = time.monotonic_ns(), self._asked_ns
        if asked_ns and now_ns - asked_ns >= _HELD_SECONDS * 1e9:
            self.is_late = True
            self._note(asked_ns, now_ns, self._holder(loop))
            self._tell_unanswered(writer, asked_ns, now_ns, named)
        elif not asked_ns:
            self._tell(writer, named)
            self.is_late = now_ns - due_ns >= _HELD_SECONDS * 1e9
            who = self._holder(loop) if self.is_late else NO_TURN
            # what was before the last answer is part of that answer's lag
            asked_ns = now_ns if who == NO_TURN else max(due_ns, self._answered_ns)
            self._asked_ns = asked_ns
            if asked_ns < now_ns:
                self._note(asked_ns, now_ns, who)
            loop.call_soon_threadsafe(self._answer, writer, asked_ns)
        return True

    def _holder(self, loop: Any) -> str:
        if self._ident is None:
            self._ident, self._num_under = thread_of(loop)
        return NO_TURN if self._ident is None else holder(self._ident, self._num_under)

    def _answer(self, writer: recorder.Recorder, asked_ns: int) -> None:
        """Called by the loop."""
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

    def _tell_unanswered(
        self, writer: recorder.Recorder, asked_ns: int, now_ns: int, named: Any
    ) -> None:
        """Of a loop that may never answer, once a second."""
        if now_ns - max(asked_ns, self._told_ns) >= _UNANSWERED_SECONDS * 1e9:
            self._told_ns = now_ns
            kind, seconds = LOOP_LAG | FAILED, (now_ns - asked_ns) / 1e9
            step = NO_STEP if writer.step is None else writer.step
            name_id = writer.name_id(named(self._held[-1][2][:_MAX_CHARS], seconds))
            writer.emit(asked_ns, now_ns, seconds, step, 0, 0, 0, kind, name_id)

    def _note(self, asked_ns: int, now_ns: int, who: str) -> None:
        if not self._held:
            self._delayed_ns = delayed_ns(self._native_id)
        begin_ns = self._held[-1][1] if self._held else asked_ns
        if self._held and self._held[-1][2] == who:
            begin_ns = self._held.pop()[0]
        self._held.append((begin_ns, now_ns, who))

    def _tell(self, writer: recorder.Recorder, named: Any) -> None:
        """The answer came: who held it until then."""
        held, self._held = self._held, []
        if not held:
            return
        begin_ns, _, who = held.pop()
        held.append((begin_ns, max(begin_ns, self._answered_ns), who))
        if held[-1][1] - held[0][0] < _TOLD_SECONDS * 1e9:
            return
        self.held_ns = held[-1][1]
        begin_ns, end_ns = held[0][0], held[-1][1]
        waited_ns = delayed_ns(self._native_id) - self._delayed_ns
        no_room = min(1.0, max(0, waited_ns) / (end_ns - begin_ns))
        no_room = no_room if no_room >= _LEAST_NO_ROOM else 0.0
        step = NO_STEP if writer.step is None else writer.step
        told = [(begin_ns, end_ns, NO_PROCESSOR, no_room)] if no_room else []
        told += [(begin_ns, end_ns, who, 1.0 - no_room) for begin_ns, end_ns, who in held]
        for begin_ns, end_ns, who, share in told:
            seconds = (end_ns - begin_ns) / 1e9 * share
            name_id = writer.name_id(named(who[:_MAX_CHARS], seconds))
            writer.emit(begin_ns, end_ns, seconds, step, 0, 0, 0, LOOP_HELD, name_id)


def delayed_ns(thread: int) -> int:
    """How long the kernel let this thread wait for a processor so far; 0 where it does not say."""
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


def holder(ident: int, num_under: int | None = None) -> str:
    """Who runs in the thread of a late loop: ``task > coroutine > function > last``.

    The task's coroutine, the innermost coroutine and function of the job's own, the innermost code.

    Where it only waits for its turn, what many other threads run: they hold the interpreter.
    ``num_under``: frames under whatever the loop calls, for one that has no frames of its own.
    """
    chain = codes_of(ident)
    held_by = _held_by(chain, num_under)
    if held_by and not _is_resting(chain):
        return held_by
    return _crowd({ident, threading.get_ident()}) or held_by or NO_TURN


def _held_by(chain: list[CodeType], num_under: int | None) -> str:
    """Nobody ("") when the loop itself is what runs: it waits, or is about to call somebody."""
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


def _crowd(but: Collection[int]) -> str:
    """What several threads do at once; "" when they are few."""
    running: Counter[str] = Counter()
    for ident in threads_now()[:_MAX_THREADS]:
        chain = codes_of(ident) if ident not in but else []
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
    """The innermost code that is the job's; else of a package that it uses; else None."""
    others = [c for c in chain if not c.co_filename.startswith((_STDLIB, "<frozen "))]
    own = (c for c in others if not any(part in c.co_filename for part in _INSTALLED))
    return next(own, others[0] if others else None)


def code_name(code: CodeType) -> str:
    file = os.path.basename(code.co_filename)
    return f"{getattr(code, 'co_qualname', code.co_name)} ({file})"
