"""Training health of a live run: passes each completed step to the detector, once and in order.

A step is complete in one of two cases:

- every living rank of the reporting roles has passed the step, and all metrics of the step before
  have been reported again.
- one rank is two steps ahead. Metrics that are still missing will not come, except numbers of a
  device, which can be one step late.

A complete step is processed one reading later, because a rank may have written values just before
it passed the step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.catalogue.native.signal_sources import Source, input_of
from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.facts.seat import LOG_ROLE, ProcessId
from dfx_agent.facts.steps import MAX_OPEN_STEPS, SUPERSEDED_BY
from dfx_agent.judge.divergence.bank import SavedBank, SignalBank
from dfx_agent.judge.divergence.broken_values import BrokenValues, Place, SavedBreak
from dfx_agent.judge.divergence.inputs import LiveInputs, broken_place
from dfx_agent.judge.divergence.saved_state import FORMAT_2, SavedState
from dfx_agent.judge.divergence.values import Choice, Origin, SavedChoice, StepValues
from dfx_agent.snapshot import SignalState

_MAX_STATES = 256
# two agents convert the same time stamp with a small difference
_CLOCK_SECONDS = 1e-3


@dataclass(frozen=True)
class SavedGenerations(SavedState):
    """Saved state of ``Generations``."""

    EARLIER: ClassVar = {"newest": "latest"}

    latest: int
    """Number of the latest generation, from 0."""
    places: dict[str, tuple[int, int]]
    """Place of a process -> (time of its creation in ns, its generation)."""


@dataclass(frozen=True)
class SavedHealth(SavedState):
    """Saved state of a ``RunHealth``."""

    EARLIER: ClassVar = {"last": "last_step", "taken_seconds": "processed_seconds"}

    bank: Annotated[SavedBank, FORMAT_2]
    choice: SavedChoice
    generations: Annotated[SavedGenerations, FORMAT_2]
    last_step: int | None
    """The last step that was processed."""
    processed_seconds: float
    """Unix time of the latest value that was processed."""
    is_numbered: bool
    """Whether the job reports step numbers."""
    num_late: int
    """Values for steps that had already been processed."""
    broken: dict[Place, Annotated[SavedBreak, FORMAT_2]] = field(default_factory=dict)


class Generations:
    """Detects a restart of the job: a new process takes the place of one that has reported."""

    def __init__(self) -> None:
        self.latest = 0  # number of the latest start of the job
        self._places: dict[str, tuple[int, int]] = {}  # place -> (created_ns, generation)

    def is_new(self, reporter: ProcessId, living: Iterable[ProcessId]) -> bool:
        """Whether this is the first process that reports after a restart of the job."""
        previous = self._places.get(reporter.place)
        if previous is None:
            self._places[reporter.place] = reporter.created_ns, self.latest
            return False
        created_ns, generation = previous
        if reporter.created_ns <= created_ns:
            return False
        if reporter.label.startswith("p") and any(
            other.place == reporter.place and other.created_ns == created_ns for other in living
        ):
            return False  # a second process in the same place
        self._places[reporter.place] = reporter.created_ns, generation + 1
        is_first = generation + 1 > self.latest
        self.latest = max(self.latest, generation + 1)
        return is_first

    def save(self) -> SavedGenerations:
        return SavedGenerations(self.latest, dict(self._places))

    def resume(self, saved: SavedGenerations) -> None:
        self.latest, self._places = saved.latest, dict(saved.places)


class RunHealth:
    """Training health of one run.

    ``critical``: the condition of the divergence alert. While it holds, the baselines are frozen.
    """

    def __init__(self, critical: Condition = DIVERGENCE.condition) -> None:
        self.critical = critical
        # None until a metric of a signal is reported
        self.state: SignalState | None = None
        self.num_late = 0  # values for steps that had already been processed
        # the latest states, one per step, oldest first
        self.states: deque[SignalState] = deque(maxlen=_MAX_STATES)
        self.broken = BrokenValues()
        self._bank = SignalBank(critical)
        self._choice = Choice()
        self._inputs = LiveInputs()
        self._generations = Generations()
        self._steps: dict[int, StepValues] = {}  # reported, not processed yet
        self._settled: set[int] = set()  # steps that were complete at the last reading
        self._latest_step_by_key: dict[ProcessId, dict[str, int]] = {}  # inner dict by native key
        self._living: Mapping[ProcessId, int | None] = {}
        self._last: int | None = None  # the last step processed
        self._processed_seconds = 0.0
        self._loaded_seconds = 0.0
        self._is_numbered = False

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that the signals come from, the one with most signals first."""
        return self._choice.roles

    def add(self, reported: ReportedScalars) -> None:
        """Record what one process has reported since the last reading."""
        reporter, framework = reported.process, reported.framework
        for scalar in reported.scalars:
            if not math.isfinite(scalar.value):
                self._add_broken(reporter, framework, scalar, reported.epoch_seconds(scalar))
            # keys of a log were already translated by their meaning
            is_log = reporter.role == LOG_ROLE
            of_key = input_of if is_log else self._inputs.find
            found = of_key(framework, scalar.key)
            if found is not None:
                value, seconds = found.scale * scalar.value, reported.epoch_seconds(scalar)
                self._add_value(reporter, scalar, found.source, value, seconds)

    def close(self, living: Mapping[ProcessId, int | None]) -> None:
        """End of a reading of all processes. ``living``: process -> the step it is in, if known."""
        self._living = living
        if len(self._latest_step_by_key) > len(living):
            self._latest_step_by_key = {
                process: steps
                for process, steps in self._latest_step_by_key.items()
                if process in living
            }
        reached = self._reached()
        complete = []
        for step in sorted(self._steps):
            if not self._is_complete(step, reached):
                break
            complete.append(step)
        for step in complete:
            if not reached or step in self._settled:
                self._observe(step)
        self._settled = set(complete) & set(self._steps)
        for step in sorted(self._steps)[:-MAX_OPEN_STEPS]:
            self._observe(step)

    def reset(self) -> None:
        """Learn the present state as normal, because an operator asked for it."""
        self._bank.reset()
        self.state = self._bank.latest_state

    def save(self) -> SavedHealth:
        """Returns what ``resume`` needs after a restart of the agent."""
        return SavedHealth(
            bank=self._bank.save(),
            choice=self._choice.save(),
            generations=self._generations.save(),
            last_step=self._last,
            processed_seconds=self._processed_seconds,
            is_numbered=self._is_numbered,
            num_late=self.num_late,
            broken=self.broken.save(),
        )

    def resume(self, saved: SavedHealth) -> None:
        """Continue from a saved state. Raises ValueError if the detector had other families."""
        self._bank.resume(saved.bank)
        self._choice.resume(saved.choice)
        self._generations.resume(saved.generations)
        self._last = saved.last_step
        self._processed_seconds = self._loaded_seconds = saved.processed_seconds
        self._is_numbered = saved.is_numbered
        self.num_late = saved.num_late
        last_step = -1 if self._last is None else self._last
        self.broken.resume(saved.broken, last_step, saved.processed_seconds)
        self.state = self._bank.latest_state

    def _add_broken(
        self, reporter: ProcessId, framework: str, scalar: ScalarRecord, seconds: float
    ) -> None:
        place = broken_place(framework, scalar.key)
        if place is None or seconds <= self._loaded_seconds + _CLOCK_SECONDS:
            return
        step = scalar.step
        if step is None:
            steps = self._latest_step_by_key.get(reporter, {}).values()
            step = max(steps, default=-1 if self._last is None else self._last) + 1
        is_timed = reporter.role != LOG_ROLE
        self.broken.observe(
            place, scalar.key, reporter.label, step, scalar.value, seconds, is_timed=is_timed
        )

    def _add_value(
        self,
        reporter: ProcessId,
        scalar: ScalarRecord,
        source: Source,
        value: float,
        seconds: float,
    ) -> None:
        if seconds <= self._loaded_seconds + _CLOCK_SECONDS:
            return  # the previous agent has processed it
        step = self._number(reporter, scalar)
        if step is None:
            return
        is_new = self._generations.is_new(reporter, self._living)
        step_by_key = self._latest_step_by_key.setdefault(reporter, {})
        # a late value belongs to an earlier step of its process
        is_current = scalar.in_step is None or scalar.in_step <= step
        if is_new or (is_current and step < step_by_key.get(scalar.key, step)):
            self._rewind(step)
        elif self._last is not None and step <= self._last:
            self.num_late += 1
            return
        self._latest_step_by_key.setdefault(reporter, {})[scalar.key] = step
        values = self._steps.setdefault(step, StepValues())
        values.add(
            source, Origin.from_key(reporter.role, scalar.key), reporter.label, value, seconds
        )

    def _number(self, reporter: ProcessId, scalar: ScalarRecord) -> int | None:
        """The step of a value; None if it cannot be known.

        Values without a step are counted, but only while the run has reported no step number.
        """
        if scalar.step is None:
            if self._is_numbered:
                return None
            before = -1 if self._last is None else self._last
            return self._latest_step_by_key.get(reporter, {}).get(scalar.key, before) + 1
        if not self._is_numbered:
            self._is_numbered = True
            self._steps.clear()
            self._latest_step_by_key.clear()
            if self._last is not None and scalar.step <= self._last:
                self._rewind(scalar.step)
        return scalar.step

    def _rewind(self, step: int) -> None:
        """Drop ``step`` and later steps, because the job repeats them."""
        for old in sorted(self._steps):
            if old < step:
                self._observe(old)
        self.broken.rewind(step)
        self._steps.clear()
        self._settled.clear()
        self._latest_step_by_key.clear()
        if self._last is not None and self._last >= step:
            self._last = step - 1

    def _reached(self) -> list[int]:
        """The latest step of each living process of a reporting role."""
        roles = {reporter.role for reporter in self._latest_step_by_key}
        reached = []
        for reporter, current_step in self._living.items():
            steps = [*self._latest_step_by_key.get(reporter, {}).values()]
            steps += [] if current_step is None else [current_step]
            if reporter.role in roles and steps:
                reached.append(max(steps))
        return reached

    def _is_complete(self, step: int, reached: list[int]) -> bool:
        if not reached or max(reached) >= step + SUPERSEDED_BY:
            return True
        return min(reached) > step and self._choice.is_whole(self._steps[step])

    def _observe(self, step: int) -> None:
        values = self._steps.pop(step)
        self.broken.set_progress(step, values.latest_seconds)
        self._last = step
        self._processed_seconds = max(self._processed_seconds, values.latest_seconds)
        signals = self._choice.signals(values)
        if signals:
            self.state = self._bank.observe(step, signals, values.event_seconds)
            while self.states and self.states[-1].step >= step:
                self.states.pop()
            self.states.append(self.state)
