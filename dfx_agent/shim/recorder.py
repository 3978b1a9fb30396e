"""The one path on which anything is recorded: spans, scalars, counts, steps.

Nothing in this file raises into the job; an error is counted in the segment. No record takes a
lock, writes to a log or makes a system call. The one lock protects the name table and is taken once
per new name.

The current step is stored twice. ``set_step`` sets the context variable and the value of the
process. A task retains the step in which it was created. A thread without a context of its own uses
the latest step of the process.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dfx_agent import __version__
from dfx_agent.shim import meter
from dfx_agent.shim.deferred import DeferredScalars
from dfx_agent.shim.meter import clock
from dfx_agent.shim.span_writer import (
    innermost,
    make_close,
    make_open,
    make_write,
    step_of_context,
)
from dfx_agent.wire import Identity, SegmentWriter, variables
from dfx_agent.wire.failure import Failure
from dfx_agent.wire.layout import (
    GUEST_ERRORS_OFFSET,
    INFLIGHT_DROPPED_OFFSET,
    STATE_CLOSED,
    THREAD_FAILURE,
)
from dfx_agent.wire.records import (
    COUNT,
    FORWARD_SAMPLES,
    GAUGE,
    GROUP,
    KIND_MASK,
    NO_STEP,
    POLICY_VERSION,
    QUEUE,
    REMOTE_WAIT,
    SCALAR,
    STAGE,
    STEP,
    TOKENS,
)
from dfx_agent.wire.ring import WriteBuffer

_CLOCK_PAIR_EVERY_NS = 10 * 10**9
_LARGEST_STEP = 2**63 - 1
_LOOK_EVERY_NS = 250_000_000

_now = time.monotonic_ns
_thread_time = time.thread_time
_ident = threading.get_ident


class _Thread(threading.local):
    """Native id of the calling thread, requested once per thread."""

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()


class Recorder:
    """One segment and the state to fill it."""

    # rows of forward passes for training since the step began, counted as ``work`` is
    num_samples = 0
    # where scores of samples are counted, and their data sources, see sample_statistics.py
    score_boundary, score_sources = "", frozenset[str]()

    def __init__(self, directory: str, identity: Identity) -> None:
        num_records = variables.RING_RECORDS.value()
        self.identity = identity
        self.pid = os.getpid()
        segment = SegmentWriter(
            directory, identity, guest_version=__version__, num_records=num_records
        )
        self._segment: Any = segment  # None once retired
        self.path = segment.path
        self.emit = segment.emit
        self.enter = segment.inflight.enter
        self.leave = segment.inflight.leave
        self.end_span = segment.end_span
        self._names: dict[str, int] = {}
        self.ledger_names: dict[tuple[str, str], int] = {}  # (boundary, column) -> name id
        self._failures: set[int] = set()  # slots that are not written again
        self._name_lock = threading.RLock()
        self._naming = 0
        self._thread = _Thread()
        # the main thread is requested most: a thread-local costs five times as much in a job
        main = threading.main_thread()
        self.main_ident = main.ident if main.native_id == self.pid else None
        self.main_id = self.pid  # native id of the first thread
        self.next_span = itertools.count(1).__next__
        self.process_step = NO_STEP
        self.is_attached = self.has_explicit_steps = False
        self.has_own_steps = False  # whether the job calls set_step: adapters and hooks do not then
        self._next_clock_pair_ns = _now() + _CLOCK_PAIR_EVERY_NS
        self._inspects_every_step = variables.LEDGER_EVERY_STEP.value()
        self.stride = 1  # values and batches are read in every stride-th step: 1, 2, 4, ...
        self.work_stride = 1  # the same for counting FLOPs
        # constant within a step: else only a part of the step's loss would be reported
        self.reads_values = self.counts_work = True
        self._step_begin_ns = self._step_ns = 0  # _step_ns: duration of a step, 0 unknown
        # totals that are added up without a record, and written as counts at the end of the step.
        # Keys are (name, thread): with one writer per key, no addition is lost
        self.work: dict[tuple[str, int], float] = {}
        self._work_written: dict[tuple[str, int], float] = {}
        self.on_stage: Callable[[str], None] | None = None  # set while models are still unknown
        self._bind(segment.write_buffer)

    def _bind(self, write_buffer: WriteBuffer) -> None:
        """Create the functions that write records, see span_writer.py."""
        self.open, self.close = (
            make_open(self, write_buffer, self._names),
            make_close(self, write_buffer),
        )
        self.write = make_write(self, write_buffer, self._names)
        self.scalar: Callable[..., None] = partial(self.write, SCALAR)  # name, value, step
        self._deferred = DeferredScalars(self.scalar)

    def scalars(self, values: Mapping[str, Any], step: int | None) -> None:
        """Write several scalars; entries that are not one number (texts, arrays) are ignored."""
        begin = meter.is_open and clock()
        try:
            at = self.step_now() if step is None else step
            emit, names, now = self.emit, self._names, _now()
            for name, value in values.items():
                if type(value) is float and name in names:
                    emit(now, now, value, at, 0, 0, 0, SCALAR, names[name])
                elif _is_number(value):
                    self.scalar(name, value, step)
            if begin:
                meter.spent_ns += clock() - begin
        except Exception:  # noqa: BLE001 (never into the job)
            self.count_error()

    def tokens(self, kind: str, count: Any) -> None:
        self.write(TOKENS, kind, count)

    def queue(self, name: str, depth: Any) -> None:
        self.write(QUEUE, name, depth)

    def policy_version(self, version: Any) -> None:
        self.write(POLICY_VERSION, "policy", version)

    @property
    def step(self) -> int | None:
        """The process-wide step; None before the first."""
        return None if self.process_step == NO_STEP else self.process_step

    def float_of(self, kind: int, name: str, value: Any, step: int) -> float | None:
        """The value as a float; None if it is on a device and will be written later.

        Raises TypeError for a number on a device that is not a scalar, which would block.
        """
        if self._deferred.is_on_device(value):
            if kind != SCALAR:
                raise TypeError("a number on a device")
            self._deferred.add(name, value, step)
            return None
        # not float(tensor), which prints a warning if the tensor has a graph
        return float(value.item() if hasattr(value, "item") else value)

    def count_unlisted(self) -> None:
        """Count a span that has no slot in the table of open spans."""
        self._segment.add_to_word(INFLIGHT_DROPPED_OFFSET)

    def step_now(self) -> int:
        """The step of this context, else of the process; NO_STEP before the first step."""
        step = step_of_context.get()
        return self.process_step if step is None else step

    def inspects_batches(self, step: int) -> bool:
        """Whether batches of this step are inspected: at most 4 to 8 steps a second.

        Short steps are inspected if their number is a multiple of 2, 4, 8 ... Ranks that measure
        different step durations therefore still have steps in common.
        """
        if step == NO_STEP or self._inspects_every_step:
            return True
        stride = self.stride
        while 0 < stride * self._step_ns < _LOOK_EVERY_NS:
            stride *= 2
        return step % stride == 0

    def fetch(self, value: Any, receive: Callable[[Any], None]) -> None:
        """Call ``receive`` some steps later with a host copy of a small device tensor."""
        self._deferred.fetch(value, receive)

    def at_step_end(self, act: Callable[[], None]) -> None:
        """Call ``act`` when the next step begins, or now in a job that has not begun a step."""
        if self.process_step == NO_STEP:
            act()
        else:
            self._deferred.postpone(act)

    def set_step(self, step: int) -> None:
        """Start a step that the job or an adapter has numbered; the previous step ends."""
        begin = meter.is_open and clock()
        self.has_explicit_steps = True
        self.begin_step(step)
        if begin:
            meter.spent_ns += clock() - begin

    def begin_step(self, step: int, kind: int = STEP) -> None:
        """Start a step for hooks, which do nothing if the job numbers its steps itself."""
        try:
            if self._deferred.is_on_device(step) or not 0 <= step <= _LARGEST_STEP:
                self.count_error()
                return
            if self.work or self.num_samples:
                self._write_work()
            now = _now()
            self.emit(now, now, _thread_time(), step, 0, 0, self.thread_id(), kind, 0)
            if self._step_begin_ns:
                self._note_duration(now - self._step_begin_ns)
            self._step_begin_ns = now
            self.process_step = step
            self.reads_values = step % self.stride == 0
            self.counts_work = step % self.work_stride == 0
            step_of_context.set(step)
            if self._deferred.pending:
                self._deferred.flush()
            if now > self._next_clock_pair_ns:
                self._next_clock_pair_ns = now + _CLOCK_PAIR_EVERY_NS
                self._segment.add_clock_pair()
        except Exception:  # noqa: BLE001 (never into the job)
            self.count_error()

    def count(self, name: str, value: float) -> None:
        """Add to the counter of this name."""
        self.write(COUNT, name, value)

    def gauge(self, name: str, value: float) -> None:
        """Replace the gauge of this name."""
        self.write(GAUGE, name, value)

    def group(self, name: str, num_enqueued: int, num_completed: int | None) -> None:
        """Record the state of a process group."""
        now = _now()
        completed = -1.0 if num_completed is None else float(num_completed)
        self.emit(now, now, completed, num_enqueued, 0, 0, 0, GROUP, self.name_id(name))

    def add_description(self, text: str) -> None:
        """Add a text to the name table, which is never overwritten; a full table counts the loss.

        Not for the hot path: it takes the lock of the name table.
        """
        with self._name_lock:
            self._naming = _ident()
            try:
                self._segment.add_name(text)
            finally:
                self._naming = 0

    def name_id(self, name: str) -> int:
        """Id in the name table; 0 when the table is full."""
        return self._names.get(name) or self._name_id(name)

    def name_of(self, name_id: int) -> str:
        """The name of an id, "" for 0. Not for the hot path."""
        names = self._names.copy().items()
        return next((name for name, number in names if number == name_id), "")

    def thread_id(self) -> int:
        """Native id of the calling thread."""
        return self.main_id if _ident() == self.main_ident else self._thread.native_id

    def num_written(self) -> tuple[int, int]:
        """Return (records, spans) written since the segment was created."""
        return self._segment.num_written(), self.num_spans()

    def num_spans(self) -> int:
        """Spans since the segment was created. Each call uses up one number itself."""
        return self.next_span() - 1

    def latest_open(self) -> tuple[int | None, str]:
        """Return (begin ns of the latest open span, name of the latest open stage), of all threads.

        Waits for a server are excluded: a process may make one after another and be stuck.
        """
        calls = self._names.get(REMOTE_WAIT)
        rows = [row for row in self._segment.open_spans() if row[9] != calls]
        latest = max(rows, key=lambda row: row[1], default=None)
        stages = [row for row in rows if row[8] & KIND_MASK == STAGE]
        stage = max(stages, key=lambda row: row[1], default=None)
        return latest[1] if latest else None, self.name_of(stage[9] if stage else 0)

    def open_rows(self) -> list[tuple[Any, ...]]:
        """Records of the spans that are open now, of all threads."""
        return list(self._segment.open_spans())

    def update_identity(self, given: dict[str, Any]) -> None:
        """Set fields that ``identity.checked`` has validated."""
        if given:
            self.identity = replace(self.identity, **given)
            self._segment.write_identity(self.identity)

    def count_error(self) -> None:
        """Count an error inside the guest; the agent shows the number."""
        segment = self._segment
        if segment is not None:
            segment.add_to_word(GUEST_ERRORS_OFFSET)

    def note_failure(self, slot: int, failure: Failure) -> None:
        """Store an uncaught exception; of threads only the first, which may have caused others."""
        segment = self._segment
        if segment is not None and slot not in self._failures:
            if slot == THREAD_FAILURE:
                self._failures.add(slot)
            segment.write_failure(slot, failure)

    def finish(self, state: int = STATE_CLOSED) -> None:
        """Write deferred values that are ready, then close the segment in an orderly way."""
        try:
            self._write_work()
            self._deferred.flush()
        except Exception:  # noqa: BLE001 (a device that has failed answers with an error)
            self.count_error()
        self._segment.finish(state)

    def unmap(self) -> None:
        """Unmap the segment without marking it as closed."""
        self._segment.close()

    def retire(self) -> None:
        """Release the memory while the job continues and some context still refers to this object.

        A thread that is recording right now finishes that record; later records are dropped.
        """
        self.emit = self.leave = self.end_span = self.close = self.write = self.scalar = _nowhere
        self.enter, self.open = _no_slot, _no_span
        self._deferred = DeferredScalars(_nowhere)
        self.on_stage = None
        self._segment = None

    def _note_duration(self, step_ns: int) -> None:
        """Update the mean over about eight steps; a long pause counts as at most twice the mean."""
        mean = self._step_ns or step_ns
        self._step_ns = max(1, mean + (min(step_ns, 2 * mean) - mean) // 8)

    def _write_work(self) -> None:
        """Write what was added up since the last step, as counts of the step that ends."""
        now = _now()
        for key, total in self.work.copy().items():
            amount = total - self._work_written.get(key, 0.0)
            if amount:
                self._work_written[key] = total
                name_id = self._names.get(key[0]) or self._name_id(key[0])
                self.emit(now, now, amount, self.process_step, 0, 0, 0, COUNT, name_id)
        if self.num_samples:
            num_samples, self.num_samples = float(self.num_samples), 0
            name_id = self._names.get(FORWARD_SAMPLES) or self._name_id(FORWARD_SAMPLES)
            self.emit(now, now, num_samples, self.process_step, 0, 0, 0, COUNT, name_id)

    def _name_id(self, name: str) -> int:
        """Id of a new name; 0 if the table is full, or in a signal handler that interrupts this."""
        if self._naming == _ident():
            self.count_error()
            return 0
        with self._name_lock:
            self._naming = _ident()
            try:
                name_id = self._names.get(name)
                if name_id is None:
                    name_id = self._segment.add_name(str(name))
                    if name_id:
                        self._names[name] = name_id
                return name_id
            finally:
                self._naming = 0


def clear_context() -> None:
    """Clear the open span and the step of this context, which would hold their recorder alive."""
    innermost.set(None)
    step_of_context.set(None)


def _nowhere(*_record: Any) -> None:
    """Replaces the functions of a recorder that is retired."""


def _no_slot(*_span: Any) -> int:
    return 0


def _no_span(*_span: Any) -> None:
    return None


def _is_number(value: Any) -> bool:
    if type(value) is float:
        return True
    try:
        return hasattr(value, "__float__") and math.prod(getattr(value, "shape", ())) == 1
    except Exception:  # noqa: BLE001 (any object of the job)
        return False


current: Recorder | None = None
# creates the recorder at the first record, if the guest is armed; None otherwise
start_late: Callable[..., Recorder | None] | None = None


def active() -> Recorder | None:
    """The recorder, created now if the process was only armed; None if it is not observed."""
    if current is None and start_late is not None:
        return start_late()
    return current


def count_error() -> None:
    """Count an error in a hook."""
    if current is not None:
        current.count_error()
