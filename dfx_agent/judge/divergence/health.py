"""Training health of a live run: every step goes to the detector once, in order, when complete.

A step is complete when every living rank of the roles that report has passed it, with all that the
step before had; or when one rank is two steps ahead, for what will never come, and for numbers of a
device that come a step late. It is taken one reading later: what a rank wrote just before it passed
is then here. Pure: the detector's clock is the step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.facts.scalars import ScalarRecord, ToldScalars
from dfx_agent.facts.seat import LOG_ROLE, ProcessId
from dfx_agent.facts.steps import MAX_OPEN_STEPS, SUPERSEDED_BY
from dfx_agent.judge.divergence.bank import KeptBank, SignalBank
from dfx_agent.judge.divergence.broken_values import BrokenValues, KeptBreak, Place
from dfx_agent.judge.divergence.inputs import LiveInputs, Source, broken_place, input_of
from dfx_agent.judge.divergence.kept import FORMAT_2, Kept
from dfx_agent.judge.divergence.values import Choice, KeptChoice, Origin, StepValues
from dfx_agent.snapshot import SignalState

_KEEP_STATES = 256
# clocks of two agents read the same stamp a little differently
_CLOCK_SECONDS = 1e-3


@dataclass(frozen=True)
class KeptGenerations(Kept):
    """``places``: when its process was created (ns), and which start of the job it belongs to."""

    newest: int
    places: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class KeptHealth(Kept):
    """Of one run: all that the next agent goes on from."""

    EARLIER: ClassVar = {"last": "last_step"}

    bank: Annotated[KeptBank, FORMAT_2]
    choice: KeptChoice
    generations: KeptGenerations
    last_step: int | None
    taken_seconds: float
    is_numbered: bool
    num_late: int
    broken: dict[Place, Annotated[KeptBreak, FORMAT_2]] = field(default_factory=dict)


class Generations:
    """Which processes are a start of the job anew: one took the place of another that reported."""

    def __init__(self) -> None:
        self.newest = 0
        self._places: dict[str, tuple[int, int]] = {}  # place -> (created_ns, generation)

    def is_new(self, reporter: ProcessId, living: Iterable[ProcessId]) -> bool:
        """True once for each start of the job: for the first process of it that reports."""
        known = self._places.get(reporter.place)
        if known is None:
            self._places[reporter.place] = reporter.created_ns, self.newest
            return False
        created_ns, generation = known
        if reporter.created_ns <= created_ns:
            return False
        if reporter.label.startswith("p") and any(
            other.place == reporter.place and other.created_ns == created_ns for other in living
        ):
            return False  # a second one beside it
        self._places[reporter.place] = reporter.created_ns, generation + 1
        is_first = generation + 1 > self.newest
        self.newest = max(self.newest, generation + 1)
        return is_first

    def kept(self) -> KeptGenerations:
        return KeptGenerations(self.newest, dict(self._places))

    def resume(self, kept: KeptGenerations) -> None:
        self.newest, self._places = kept.newest, dict(kept.places)


class RunHealth:
    """One run. ``state`` is None until it reported a metric that a signal is made of.

    ``critical``: while it holds the baselines are frozen, and the run is said to diverge.

    ``states`` are the newest, one a step, oldest first; ``num_late`` counts values for steps that
    had been taken already.
    """

    def __init__(self, critical: Condition = DIVERGENCE.condition) -> None:
        self.critical = critical
        self.state: SignalState | None = None
        self.num_late = 0
        self.states: deque[SignalState] = deque(maxlen=_KEEP_STATES)
        self.broken = BrokenValues()
        self._bank = SignalBank(critical)
        self._choice = Choice()
        self._inputs = LiveInputs()
        self._generations = Generations()
        self._steps: dict[int, StepValues] = {}  # reported, not taken yet
        self._settled: set[int] = set()  # were complete at the last reading
        self._newest: dict[ProcessId, dict[str, int]] = {}  # by native key
        self._living: Mapping[ProcessId, int | None] = {}
        self._last: int | None = None  # the newest step taken
        self._taken_seconds = 0.0
        self._loaded_seconds = 0.0
        self._is_numbered = False

    @property
    def roles(self) -> tuple[str, ...]:
        return self._choice.roles

    def add(self, told: ToldScalars) -> None:
        """What one process reported."""
        reporter, framework = told.process, told.framework
        for scalar in told.scalars:
            if not math.isfinite(scalar.value):
                self._take_broken(reporter, framework, scalar, told.epoch_seconds(scalar))
            # a log was read by meaning before it came here
            is_log = reporter.role == LOG_ROLE
            of_key = input_of if is_log else self._inputs.find
            found = of_key(framework, scalar.key)
            if found is not None:
                value, seconds = found.scale * scalar.value, told.epoch_seconds(scalar)
                self._take(reporter, scalar, found.source, value, seconds)

    def close(self, living: Mapping[ProcessId, int | None]) -> None:
        """All processes were read; ``living`` -> the step each said it is in."""
        self._living = living
        if len(self._newest) > len(living):
            self._newest = {r: newest for r, newest in self._newest.items() if r in living}
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
        """The operator says that the present state is normal."""
        self._bank.reset()
        self.state = self._bank.newest

    def kept(self) -> KeptHealth:
        """What outlives the agent."""
        return KeptHealth(
            bank=self._bank.kept(),
            choice=self._choice.kept(),
            generations=self._generations.kept(),
            last_step=self._last,
            taken_seconds=self._taken_seconds,
            is_numbered=self._is_numbered,
            num_late=self.num_late,
            broken=self.broken.kept(),
        )

    def resume(self, kept: KeptHealth) -> None:
        """Go on from there; ValueError if it is of a detector with other families."""
        self._bank.resume(kept.bank)
        self._choice.resume(kept.choice)
        self._generations.resume(kept.generations)
        self._last = kept.last_step
        self._taken_seconds = self._loaded_seconds = kept.taken_seconds
        self._is_numbered = kept.is_numbered
        self.num_late = kept.num_late
        last_step = -1 if self._last is None else self._last
        self.broken.resume(kept.broken, last_step, kept.taken_seconds)
        self.state = self._bank.newest

    def _take_broken(
        self, reporter: ProcessId, framework: str, scalar: ScalarRecord, seconds: float
    ) -> None:
        place = broken_place(framework, scalar.key)
        if place is None or seconds <= self._loaded_seconds + _CLOCK_SECONDS:
            return
        step = scalar.step
        if step is None:
            newest = self._newest.get(reporter, {}).values()
            step = max(newest, default=-1 if self._last is None else self._last) + 1
        is_timed = reporter.role != LOG_ROLE
        self.broken.observe(
            place, scalar.key, reporter.label, step, scalar.value, seconds, is_timed=is_timed
        )

    def _take(
        self,
        reporter: ProcessId,
        scalar: ScalarRecord,
        source: Source,
        value: float,
        seconds: float,
    ) -> None:
        if seconds <= self._loaded_seconds + _CLOCK_SECONDS:
            return  # the agent before this one has seen it
        step = self._number(reporter, scalar)
        if step is None:
            return
        is_new = self._generations.is_new(reporter, self._living)
        newest = self._newest.setdefault(reporter, {})
        # a late value belongs to a step that its process has left
        is_here = scalar.in_step is None or scalar.in_step <= step
        if is_new or (is_here and step < newest.get(scalar.key, step)):
            self._rewind(step)
        elif self._last is not None and step <= self._last:
            self.num_late += 1
            return
        self._newest.setdefault(reporter, {})[scalar.key] = step
        values = self._steps.setdefault(step, StepValues())
        values.add(source, Origin.of(reporter.role, scalar.key), reporter.label, value, seconds)

    def _number(self, reporter: ProcessId, scalar: ScalarRecord) -> int | None:
        """The step of a value. Without one it counts on, but only in a run that numbers none."""
        if scalar.step is None:
            if self._is_numbered:
                return None
            before = -1 if self._last is None else self._last
            return self._newest.get(reporter, {}).get(scalar.key, before) + 1
        if not self._is_numbered:
            self._is_numbered = True
            self._steps.clear()
            self._newest.clear()
            if self._last is not None and scalar.step <= self._last:
                self._rewind(scalar.step)
        return scalar.step

    def _rewind(self, step: int) -> None:
        """The job goes back to ``step``: what it reported for it and after it is void."""
        for old in sorted(self._steps):
            if old < step:
                self._observe(old)
        self.broken.rewind(step)
        self._steps.clear()
        self._settled.clear()
        self._newest.clear()
        if self._last is not None and self._last >= step:
            self._last = step - 1

    def _reached(self) -> list[int]:
        """How far each living process is that is waited for."""
        roles = {reporter.role for reporter in self._newest}
        reached = []
        for reporter, told in self._living.items():
            steps = [*self._newest.get(reporter, {}).values(), *([] if told is None else [told])]
            if reporter.role in roles and steps:
                reached.append(max(steps))
        return reached

    def _is_complete(self, step: int, reached: list[int]) -> bool:
        if not reached or max(reached) >= step + SUPERSEDED_BY:
            return True
        return min(reached) > step and self._choice.is_whole(self._steps[step])

    def _observe(self, step: int) -> None:
        values = self._steps.pop(step)
        self.broken.reached(step, values.newest_seconds)
        self._last = step
        self._taken_seconds = max(self._taken_seconds, values.newest_seconds)
        signals = self._choice.signals(values)
        if signals:
            self.state = self._bank.observe(step, signals, values.event_seconds)
            while self.states and self.states[-1].step >= step:
                self.states.pop()
            self.states.append(self.state)
