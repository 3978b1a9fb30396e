"""Measures what the guest costs this process, and reduces detail above a budget.

Cost = (time of the guest's functions in the job's threads + CPU time of its own thread) / elapsed
time. The first part is measured in one second of four (meter.py). The gauge is the mean of the
latest windows.

Above the budget, detail is reduced in the order of ``_LEVELS``, one level at a time, and restored
when there is room. First FLOPs, then values and batches, are recorded only in every 16th step. The
median of the latest windows decides, because a window in which a thread loses its CPU inside the
guest shows too much. Steps are always recorded: without them a job looks blocked. Stages and
collectives are the evidence for a hang, so they are disabled only for a budget that a user set.
"""

from __future__ import annotations

import time
from collections import deque

from dfx_agent.shim import meter, patches, recorder
from dfx_agent.shim.torch import step_hooks
from dfx_agent.wire import variables

_PERIOD = 4  # calls of ``account``, about one a second; a window is open in the last of them
_NUM_WINDOWS = 5
_ENOUGH_WINDOWS = 3
RARELY = 16  # steps between two in which FLOPs, values and batches are recorded
_ROOM = 0.7  # of the budget: below it one more level can be restored
_FIRST_PATIENCE = 15  # windows with room before a level is restored: a minute; then doubled

# hooks that each level disables. The first level counts FLOPs rarely, the second reads values and
# batches rarely
_LEVELS = ((), (), ("flops", "device_time", "forward", "grad_norm"), ("ddp", "collectives"))
_FLOPS_LEVEL, _VALUES_LEVEL, _STAGES_LEVEL = 1, 2, 3
_LEVELS_BY_DEFAULT = 2

# the budget of the agent that attached; None: that of the environment
allowed_ratio: float | None = None


class Overhead:
    """Cost account of one process; the guest's thread calls ``account``."""

    def __init__(self) -> None:
        self._budget = allowed_ratio
        self._of_environment = variables.MAX_OVERHEAD.value()
        self._is_asked_for = bool(variables.MAX_OVERHEAD.text())
        self._num_calls = 0
        self._begin: tuple[int, int] | None = None  # of the open window: (ns, CPU ns of the thread)
        self._own: tuple[int, int] | None = None  # the same at the end of the last window
        self._ratios: deque[float] = deque(maxlen=_NUM_WINDOWS)
        self._level = 0
        self._given_up: dict[str, patches.State] = {}
        self._patience, self._num_with_room = _FIRST_PATIENCE, 0

    def restart(self) -> None:
        """Drop the current window after work that is done only once."""
        meter.close_window()
        self._begin = self._own = None
        self._num_calls = 0

    def account(self, writer: recorder.Recorder, now_ns: int) -> None:
        """Update the account once per second; after each window adapt the detail."""
        if self._budget != allowed_ratio:
            self._budget = allowed_ratio
            if self.restore_all():
                writer.gauge("guest/given_up", 0.0)
        self._num_calls += 1
        own_ns = time.thread_time_ns()
        if self._begin is not None:
            self._close_window(writer, now_ns, own_ns)
        elif self._num_calls % _PERIOD == _PERIOD - 1:
            self._begin = now_ns, own_ns
            meter.open_window()

    def restore_all(self) -> bool:
        """Restore all detail and restart the measurement; False if nothing was reduced."""
        if not self._level:
            return False
        while self._level:
            self._restore_level()
        self._patience = _FIRST_PATIENCE
        self.restart()
        return True

    def _close_window(self, writer: recorder.Recorder, now_ns: int, own_ns: int) -> None:
        assert self._begin is not None
        spent_ns, (begin_ns, own_begin_ns) = meter.close_window(), self._begin
        before_ns, own_before_ns = self._own or (begin_ns, own_begin_ns)
        self._begin, self._own = None, (now_ns, own_ns)
        if now_ns <= begin_ns:
            return
        own = (own_ns - own_before_ns) / (now_ns - before_ns)
        self._ratios.append(spent_ns / (now_ns - begin_ns) + own)
        writer.gauge("guest/overhead_ratio", sum(self._ratios) / len(self._ratios))
        self._adapt(writer, sorted(self._ratios)[len(self._ratios) // 2])

    def _adapt(self, writer: recorder.Recorder, ratio: float) -> None:
        is_asked_for = self._budget is not None or self._is_asked_for
        budget = self._of_environment if self._budget is None else self._budget
        if budget is None or len(self._ratios) < _ENOUGH_WINDOWS:
            return
        most = len(_LEVELS) if is_asked_for else _LEVELS_BY_DEFAULT
        self._num_with_room = self._num_with_room + 1 if ratio < _ROOM * budget else 0
        if ratio > budget and self._level < most:
            self._reduce_level()
        elif self._level and self._num_with_room >= self._patience:
            self._restore_level()
            self._patience *= 2  # in case it must be reduced again
        else:
            return
        self._ratios.clear()
        self._num_with_room = 0
        writer.gauge("guest/given_up", self._level)

    def _reduce_level(self) -> None:
        for name in _LEVELS[self._level]:
            if name in patches.registry:
                self._given_up[name] = patches.registry[name].state
                patches.registry[name].suspend()
        self._level += 1
        self._apply()

    def _restore_level(self) -> None:
        self._level -= 1
        for name in _LEVELS[self._level]:
            if name in self._given_up:
                patches.registry[name].resume(self._given_up.pop(name))
        self._apply()

    def _apply(self) -> None:
        step_hooks.seen.has_details = self._level < _STAGES_LEVEL
        writer = recorder.current
        if writer is not None:
            writer.work_stride = RARELY if self._level >= _FLOPS_LEVEL else 1
            writer.stride = RARELY if self._level >= _VALUES_LEVEL else 1
