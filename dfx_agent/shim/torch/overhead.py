"""What the guest costs this process, accounted while it runs, and what it gives up above a budget.

Cost = records x ns of one + spans x ns of one + collectives x ns of their group's number + the
watch thread's processor time, over the wall time of a window. The ns are measured here and now, on
the job's own interpreter, with records of the kind CALIBRATION that the agent passes over: one call
per second, because the job has emptied the caches since the last. A loop of equal calls would say a
tenth of what the hooks really take (docs/benchmarks.md). Switching hooks off for whole steps would
measure more directly, and lose those steps' data.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from dfx_agent.shim import patches, recorder
from dfx_agent.shim.torch import collectives, step_hooks
from dfx_agent.wire import variables
from dfx_agent.wire.records import CALIBRATION

_WINDOW_NS = 10 * 10**9
_NUM_SAMPLES = 15
# given up in this order: first where time goes within a step, then the collectives; never the
# steps, which come from the optimizer: without them a job looks stalled
_DETAILS = ("device_time", "forward", "flops", "grad_norm")
_COLLECTIVES = ("ddp", "collectives")
_PARTS = (_DETAILS, _COLLECTIVES)

# what the agent that attached allows; None: what the environment does
allowed_ratio: float | None = None


class Overhead:
    """Account of one process; ``account`` is called by the watch thread."""

    def __init__(self) -> None:
        self._budget = allowed_ratio
        self._of_environment = variables.MAX_OVERHEAD.value()
        self._record_ns: deque[int] = deque(maxlen=_NUM_SAMPLES)
        self._span_ns: deque[int] = deque(maxlen=_NUM_SAMPLES)
        self._number_ns: deque[int] = deque(maxlen=_NUM_SAMPLES)
        self._num_calls = 0
        self._before: tuple[int, int, int, int, int] | None = None
        self._to_give_up = [*_PARTS]
        self._given_up: dict[str, patches.State] = {}

    def begin_anew(self) -> None:
        """Something was done once: the window that it falls into says nothing about the rest."""
        self._before = None

    def account(self, writer: recorder.Recorder, now_ns: int) -> None:
        """Once per second: a sample; once per window: "guest/overhead_ratio", and less detail."""
        if self._budget != allowed_ratio:
            self._budget = allowed_ratio
            if self.take_up():
                writer.gauge("guest/given_up", 0.0)
        self._sample(writer)
        if self._before is not None and now_ns - self._before[0] < _WINDOW_NS:
            return
        records, spans = writer.num_written()
        state = (now_ns, records, spans, collectives.num_calls(), time.thread_time_ns())
        if self._before is not None:
            elapsed, *counts, own = (b - a for a, b in zip(self._before, state, strict=True))
            costs = zip(counts, self._costs(), strict=True)
            ratio = (sum(count * cost for count, cost in costs) + own) / elapsed
            writer.gauge("guest/overhead_ratio", ratio)
            budget = self._of_environment if self._budget is None else self._budget
            if budget is not None and ratio > budget and self._to_give_up:
                self._give_up(writer)
        self._before = state

    def take_up(self) -> bool:
        """Bring back what was given up, and measure anew; False when nothing was."""
        if len(self._to_give_up) == len(_PARTS):
            return False
        self._to_give_up = [*_PARTS]
        for name, state in self._given_up.items():
            patches.registry[name].resume(state)
        self._given_up.clear()
        step_hooks.seen.has_details = True
        self.begin_anew()
        return True

    def _give_up(self, writer: recorder.Recorder) -> None:
        """The next of what can be missed, and say so: "guest/given_up", 1 details, 2 all."""
        for name in self._to_give_up.pop(0):
            if name in patches.registry:
                self._given_up[name] = patches.registry[name].state
                patches.registry[name].suspend()
        step_hooks.give_up_details()
        writer.gauge("guest/given_up", len(_PARTS) - len(self._to_give_up))

    def _sample(self, writer: recorder.Recorder) -> None:
        """Time one call, of another kind each time: the one before would have warmed its code."""
        self._num_calls += 1
        turn = self._num_calls % 3
        if turn == 0:
            elapsed = _elapsed_ns(lambda: writer.emit(0, 0, 0.0, 0, 0, 0, 0, CALIBRATION, 0))
            self._record_ns.append(elapsed)
        elif turn == 1:
            self._span_ns.append(_elapsed_ns(lambda: _one_span(writer)))
        elif groups := collectives.known_groups():
            self._number_ns.append(_elapsed_ns(groups[0].sequence))

    def _costs(self) -> tuple[float, float, float]:
        """(ns of a record, ns of a span without its record, ns of a group's number)."""
        record, span, number = (
            _median(samples) for samples in (self._record_ns, self._span_ns, self._number_ns)
        )
        return record, max(0.0, span - record), number


def _one_span(writer: recorder.Recorder) -> None:
    opened = writer.open(_NOBODY, "step", CALIBRATION)
    if opened is not None:
        recorder.innermost.set(opened[-1])
        writer.close(opened, None)


class _Nobody:
    """Owner of calibration spans."""

    _num_open = 1


_NOBODY = _Nobody()


def _median(samples: deque[int]) -> float:
    """0 without samples; the module of that name would import decimal, fractions and random."""
    return float(sorted(samples)[len(samples) // 2]) if samples else 0.0


def _elapsed_ns(call: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin
