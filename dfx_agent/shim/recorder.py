"""The one path on which anything is recorded: spans, scalars, counts, steps.

Two rules hold everywhere: nothing here raises into the job (an error is counted in the header), and
nothing here locks, logs or enters the kernel per record. The one lock guards the name table and is
taken once per new name.

Step state has two places. ``set_step`` writes the context variable and the process-wide value: a
task keeps the step it was created in, a thread without a context of its own sees the newest.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from dfx_agent import __version__
from dfx_agent.shim.deferred import DeferredScalars
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.layout import (
    DEFAULT_NUM_RECORDS,
    GUEST_ERRORS_OFFSET,
    INFLIGHT_DROPPED_OFFSET,
)
from dfx_agent.wire.records import (
    FAILED,
    NO_STEP,
    POLICY_VERSION,
    QUEUE,
    SCALAR,
    STEP,
    TOKENS,
)

_CLOCK_PAIR_EVERY_NS = 10 * 10**9
_LARGEST_STEP = 2**63 - 1

_span_id: ContextVar[int] = ContextVar("dfx_span", default=0)
_step: ContextVar[int | None] = ContextVar("dfx_step", default=None)

_now = time.monotonic_ns
_ident = threading.get_ident

# (recorder, span id, begin, name id, step, parent, in-flight slot or None, previous id, outer)
OpenSpan = tuple["Recorder", int, int, int, int, int, "int | None", int, Any]


class Recorder:
    """One segment and the state to fill it."""

    def __init__(self, directory: str, identity: Identity) -> None:
        num_records = int(os.environ.get("DFX_RING_RECORDS", DEFAULT_NUM_RECORDS))
        self.identity = identity
        self.pid = os.getpid()
        self._segment = SegmentWriter(
            directory, identity, guest_version=__version__, num_records=num_records
        )
        self.path = self._segment.path
        self._emit = self._segment.emit
        self._inflight = self._segment.inflight
        self._names: dict[str, int] = {}
        self._name_lock = threading.RLock()
        self._threads: dict[int, int] = {}
        self._next_span = itertools.count(1).__next__
        self._step = NO_STEP
        self._next_clock_pair_ns = _now() + _CLOCK_PAIR_EVERY_NS
        self._deferred = DeferredScalars(self._scalar)

    def open(self, name: str, kind: int, outer: OpenSpan | None) -> OpenSpan:
        """Begin a span in the current context."""
        parent = _span_id.get()
        span = self._next_span() & 0xFFFFFFFF
        step = _step.get()
        if step is None:
            step = self._step
        name_id = self._names.get(name) or self._name_id(name)
        begin = _now()
        slot = None
        try:
            thread = self._threads.get(_ident()) or self._thread_id()
            slot = self._inflight.enter(begin, step, span, parent, thread, kind, name_id)
        except IndexError:
            self._segment.add_to_word(INFLIGHT_DROPPED_OFFSET)
        _span_id.set(span)
        return self, span, begin, name_id, step, parent, slot, parent, outer

    def close(self, opened: OpenSpan, kind: int, *, failed: bool) -> None:
        """End a span that this recorder opened."""
        _, span, begin, name_id, step, parent, slot, previous, _ = opened
        end = _now()
        thread = self._threads.get(_ident()) or self._thread_id()
        self._emit(
            begin, end, 0.0, step, span, parent, thread, kind | FAILED if failed else kind, name_id
        )
        if slot is not None:
            self._inflight.leave(slot)
        _span_id.set(previous)

    def scalar(self, name: str, value: Any, step: int | None) -> None:
        """A number now, or a device tensor whose value is read when its event has completed."""
        if type(value) is not float:
            if self._deferred.takes(value):
                self._deferred.add(name, value, self._current_step(step))
                return
            value = float(value)
        self._scalar(name, value, self._current_step(step))

    def scalars(self, values: Mapping[str, Any], step: int | None) -> None:
        """Several at once; what is not a number is passed over, as trackers get strings too."""
        for name, value in values.items():
            try:
                self.scalar(name, value, step)
            except (TypeError, ValueError):
                continue

    def tokens(self, kind: str, count: Any) -> None:
        self._count(TOKENS, kind, count)

    def queue(self, name: str, depth: Any) -> None:
        self._count(QUEUE, name, depth)

    def policy_version(self, version: Any) -> None:
        self._count(POLICY_VERSION, "policy", version)

    def set_step(self, step: int) -> None:
        """Begin a step: the window of the one before ends here."""
        if not -1 < step <= _LARGEST_STEP:
            raise ValueError(step)
        self._step = step
        _step.set(step)
        now = _now()
        self._emit(now, now, 0.0, step, 0, 0, 0, STEP, 0)
        self._deferred.flush()
        if now > self._next_clock_pair_ns:
            self._next_clock_pair_ns = now + _CLOCK_PAIR_EVERY_NS
            self._segment.add_clock_pair()

    def update_identity(self, **changes: Any) -> None:
        """Take over what is not None."""
        given = {key: value for key, value in changes.items() if value is not None}
        if given:
            self.identity = replace(self.identity, **given)
            self._segment.write_identity(self.identity)

    def count_error(self) -> None:
        """Something went wrong inside the guest; the agent shows the number."""
        self._segment.add_to_word(GUEST_ERRORS_OFFSET)

    def finish(self) -> None:
        """Orderly end: what is deferred is written if it is ready, then the segment closes."""
        self._deferred.flush()
        self._segment.finish()

    def release(self) -> None:
        """Unmap without a word to the agent."""
        self._segment.close()

    def _count(self, kind: int, name: str, value: Any) -> None:
        if self._deferred.takes(value):
            raise TypeError("a device tensor would have to be waited for")
        now = _now()
        name_id = self._names.get(name) or self._name_id(name)
        self._emit(
            now, now, float(value), self._current_step(None), 0, _span_id.get(), 0, kind, name_id
        )

    def _scalar(self, name: str, value: float, step: int) -> None:
        now = _now()
        name_id = self._names.get(name) or self._name_id(name)
        self._emit(now, now, value, step, 0, 0, 0, SCALAR, name_id)

    def _current_step(self, step: int | None) -> int:
        if step is not None:
            return step
        step = _step.get()
        return self._step if step is None else step

    def _name_id(self, name: str) -> int:
        with self._name_lock:
            known = self._names.get(name)
            if known is None:
                known = self._names[name] = self._segment.add_name(str(name))
            return known

    def _thread_id(self) -> int:
        thread = self._threads[_ident()] = threading.get_native_id()
        return thread


current: Recorder | None = None
# what creates the recorder at the first record, when we are preloaded; None otherwise
start_late: Callable[[], Recorder | None] | None = None


def active() -> Recorder | None:
    """The recorder, created now if the process was only armed; None when not observed."""
    if current is None and start_late is not None:
        return start_late()
    return current
