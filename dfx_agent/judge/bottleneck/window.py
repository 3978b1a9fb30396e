"""The newest steps of a pipeline, what its processes and engines did meanwhile, and what is usual.

A figure of a step is compared with what it usually was, so that a change has a first step.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from dfx_agent.facts.pipeline import PipelineFacts, ProcessTime, Told
from dfx_agent.judge.bottleneck.step_shares import StepShares
from dfx_agent.snapshot import EngineFacts, StepRow

_KEEP_STEPS = 64
_LEAST_BEFORE = 6
_WARM_UP_STEPS = 2  # of a run: they compile, allocate, and find their queues empty or full
NUM_NEW = 3
NUM_COMPARED = 2 * NUM_NEW  # newest steps, at most, whose mean is told
_SPREADS = 4.0
_MAD_TO_SIGMA = 1.4826
_HARDLY, _MOSTLY, _LEAST_MOMENTS = 0.05, 0.75, 3

EngineKey = tuple[str, str]  # replica, data parallel rank


class Change(NamedTuple):
    """``usual`` was the median before ``since_step``; ``now`` is the mean from there on."""

    usual: float
    now: float
    since_step: int

    @property
    def excess(self) -> float:
        return self.now - self.usual

    def until(self, usual: str) -> str:
        """As in "; until step 11 it was 0.2 s"."""
        return f"; until step {self.since_step - 1} it was {usual}"


class Habit:
    """One figure by step. Its newest three steps are compared with those before.

    While a change lasts, what it is compared with stays: a fault is no habit.
    """

    def __init__(self) -> None:
        self._values: deque[tuple[int, float]] = deque(maxlen=_KEEP_STEPS)
        self._found: tuple[float, int, float] | None = None  # usual, since step, least

    def add(self, step: int, value: float) -> None:
        if step > (self._values[-1][0] if self._values else _WARM_UP_STEPS):
            self._values.append((step, value))

    @property
    def usual(self) -> float | None:
        """None before there are enough steps."""
        if self._found is not None:
            return self._found[0]
        before = [value for _, value in self._values]
        return median(before) if len(before) >= _LEAST_BEFORE else None

    def change(self, least: float, *, falls: bool = False) -> Change | None:
        """None unless it is ``least`` beside its habit, and clearly, in the newest steps."""
        sign = -1.0 if falls else 1.0
        newest = [value for _, value in self._values][-NUM_NEW:]
        if self._found is None:
            self._found = self._new_change(least, sign)
        if self._found is None:
            return None
        usual, since, needed = self._found
        if sign * (median(newest) - usual) < needed / 2:
            self._found = None
            return None
        return Change(usual, fmean(self._since(since)), since)

    def _since(self, since: int) -> list[float]:
        """The newest values, none of before the change."""
        return [value for step, value in self._values if step >= since][-NUM_COMPARED:]

    def _new_change(self, least: float, sign: float) -> tuple[float, int, float] | None:
        values = list(self._values)
        before = [value for _, value in values[:-NUM_NEW]]
        if len(before) < _LEAST_BEFORE:
            return None
        usual = median(before)
        spread = _MAD_TO_SIGMA * median(abs(value - usual) for value in before)
        needed = max(least, _SPREADS * spread)
        newest = [value for _, value in values[-NUM_NEW:]]
        if sign * (median(newest) - usual) < needed:
            return None
        since = values[-1][0]
        for step, value in reversed(values):
            if sign * (value - usual) < needed / 2:
                break
            since = step
        return usual, since, needed


@dataclass(frozen=True)
class Moment:
    """What was known when a step had closed, of all that is not told by the step itself."""

    step: int
    at_seconds: float
    engines: Mapping[EngineKey, EngineFacts]
    processes: Mapping[tuple[str, str], ProcessTime]

    @classmethod
    def of(cls, step: int, role: str, facts: PipelineFacts) -> Moment:
        """``role`` trains: of its many ranks only those with an event loop are kept."""
        return cls(
            step,
            facts.now_seconds,
            {(e.replica, e.dp_rank): e for e in facts.engines},
            {(p.role, p.rank): p for p in facts.processes if p.role != role or p.event_loop},
        )


@dataclass(frozen=True)
class Window:
    """Steps ``rows`` of ``role``; ``moments`` from their begin to when the last had closed."""

    role: str
    rows: Sequence[StepRow]
    shares: StepShares
    moments: Sequence[Moment]
    told: Mapping[Told, float]
    left_out: Sequence[StepRow] = ()  # of checkpoints, or unusually long

    @property
    def first(self) -> Moment:
        return self.moments[0]

    @property
    def last(self) -> Moment:
        return self.moments[-1]

    @property
    def num_steps(self) -> int:
        return self.last.step - self.first.step

    @property
    def step_seconds(self) -> float:
        return self.shares.step_seconds

    def engines(self) -> Iterator[tuple[EngineFacts, EngineFacts]]:
        """(at the begin, at the end) of each that was up at both."""
        for key, last in self.last.engines.items():
            first = self.first.engines.get(key)
            if first is not None and first.state == last.state == "up":
                yield first, last

    def states_of(self, engine: EngineFacts) -> list[EngineFacts]:
        """What it said at each moment, the oldest first."""
        key = engine.replica, engine.dp_rank
        return [moment.engines[key] for moment in self.moments if key in moment.engines]

    def processes(self) -> Iterator[tuple[ProcessTime, ProcessTime]]:
        for key, last in self.last.processes.items():
            first = self.first.processes.get(key)
            if first is not None and first.pid == last.pid:
                yield first, last

    def has_full_queue(self) -> bool:
        """Whether what rollout makes is there before it is asked for: a queue at its most."""
        if self.shares.ratio("rollout") > _HARDLY or len(self.moments) < _LEAST_MOMENTS:
            return False
        depths: defaultdict[str, list[float]] = defaultdict(list)
        for moment in self.moments:
            for process in moment.processes.values():
                for queue, depth in process.queue_depth.items():
                    depths[queue].append(depth)
        return any(
            max(known) > 1 and sum(depth == max(known) for depth in known) >= _MOSTLY * len(known)
            for known in depths.values()
            if len(known) >= _LEAST_MOMENTS
        )

    def process_of(self, engine: EngineFacts) -> tuple[ProcessTime, ProcessTime] | None:
        """The process of an engine that has a guest."""
        pairs = (pair for pair in self.processes() if pair[1].pid == engine.pid)
        return next(pairs, None)


@dataclass
class Habits:
    """By what they are of; a figure that nobody told has none."""

    by_name: defaultdict[str, Habit] = field(default_factory=lambda: defaultdict(Habit))

    def add(self, name: str, step: int, value: float | None) -> None:
        if value is not None:
            self.by_name[name].add(step, value)

    def __getitem__(self, name: str) -> Habit:
        return self.by_name[name]


def told(facts: Mapping[Told, float], metric: str, **labels: str) -> float | None:
    return facts.get(Told(metric, tuple(sorted(labels.items()))))
