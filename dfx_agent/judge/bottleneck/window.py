"""The latest steps of a pipeline with the state of its processes and engines.

Figures of a step are compared with their usual values, so that a change has a first step.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from dfx_agent.judge.bottleneck.pipeline_facts import LabeledMetric, PipelineFacts, ProcessTime
from dfx_agent.judge.bottleneck.step_shares import StepShares
from dfx_agent.snapshot import EngineFacts, StepRow

_MAX_STEPS = 64
_LEAST_BEFORE = 6
_WARM_UP_STEPS = 2  # the first steps compile, allocate, and start with empty or full queues
NUM_NEW = 3
NUM_COMPARED = 2 * NUM_NEW  # largest number of latest steps in the mean of a change
_SPREADS = 4.0
_MAD_TO_SIGMA = 1.4826
_HARDLY, _MOSTLY, _LEAST_MOMENTS = 0.05, 0.75, 3

EngineKey = tuple[str, str]  # replica, data parallel rank


class Change(NamedTuple):
    """A lasting change of a figure."""

    usual: float
    """Median before ``since_step``."""
    now: float
    """Mean since ``since_step``."""
    since_step: int

    @property
    def excess(self) -> float:
        return self.now - self.usual

    def until(self, usual: str) -> str:
        """As in "; until step 11 it was 0.2 s"."""
        return f"; until step {self.since_step - 1} it was {usual}"


class FigureHistory:
    """Values of one figure by step. The last three are compared with the values before.

    While a change lasts, the usual value is not updated.
    """

    def __init__(self) -> None:
        self._values: deque[tuple[int, float]] = deque(maxlen=_MAX_STEPS)
        self._found: tuple[float, int, float] | None = None  # usual, since step, least

    def add(self, step: int, value: float) -> None:
        if step > (self._values[-1][0] if self._values else _WARM_UP_STEPS):
            self._values.append((step, value))

    @property
    def usual(self) -> float | None:
        """The usual value; None before there are enough steps."""
        if self._found is not None:
            return self._found[0]
        before = [value for _, value in self._values]
        return median(before) if len(before) >= _LEAST_BEFORE else None

    def change(self, least: float, *, falls: bool = False) -> Change | None:
        """The change in the last steps; None if it is below ``least`` or within the noise."""
        sign = -1.0 if falls else 1.0
        latest = [value for _, value in self._values][-NUM_NEW:]
        if self._found is None:
            self._found = self._new_change(least, sign)
        if self._found is None:
            return None
        usual, since, needed = self._found
        if sign * (median(latest) - usual) < needed / 2:
            self._found = None
            return None
        return Change(usual, fmean(self._since(since)), since)

    def _since(self, since: int) -> list[float]:
        """The last values, without values before the change."""
        return [value for step, value in self._values if step >= since][-NUM_COMPARED:]

    def _new_change(self, least: float, sign: float) -> tuple[float, int, float] | None:
        values = list(self._values)
        before = [value for _, value in values[:-NUM_NEW]]
        if len(before) < _LEAST_BEFORE:
            return None
        usual = median(before)
        spread = _MAD_TO_SIGMA * median(abs(value - usual) for value in before)
        needed = max(least, _SPREADS * spread)
        latest = [value for _, value in values[-NUM_NEW:]]
        if sign * (median(latest) - usual) < needed:
            return None
        since = values[-1][0]
        for step, value in reversed(values):
            if sign * (value - usual) < needed / 2:
                break
            since = step
        return usual, since, needed


@dataclass(frozen=True)
class Moment:
    """State of engines and processes when a step had closed."""

    step: int
    at_seconds: float
    engines: Mapping[EngineKey, EngineFacts]
    processes: Mapping[tuple[str, str], ProcessTime]

    @classmethod
    def from_facts(cls, step: int, role: str, facts: PipelineFacts) -> Moment:
        """The state now. ``role`` trains: only its ranks with an event loop are stored."""
        return cls(
            step,
            facts.now_seconds,
            {(engine.replica, engine.dp_rank): engine for engine in facts.engines},
            {
                (process.role, process.rank): process
                for process in facts.processes
                if process.role != role or process.event_loop
            },
        )


@dataclass(frozen=True)
class PipelineWindow:
    """The latest steps of the training role, with everything that causes are found from."""

    role: str
    rows: Sequence[StepRow]
    shares: StepShares
    moments: Sequence[Moment]
    """From the begin of the first step to the end of the last one."""
    reported: Mapping[LabeledMetric, float]
    """Values of metrics that frameworks report."""
    left_out: Sequence[StepRow] = ()
    """Steps with a checkpoint, or unusually long ones."""

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
        """(first, last) state of each engine that was up at both."""
        for key, last in self.last.engines.items():
            first = self.first.engines.get(key)
            if first is not None and first.state == last.state == "up":
                yield first, last

    def states_of(self, engine: EngineFacts) -> list[EngineFacts]:
        """States of an engine at all moments, oldest first."""
        key = engine.replica, engine.dp_rank
        return [moment.engines[key] for moment in self.moments if key in moment.engines]

    def processes(self) -> Iterator[tuple[ProcessTime, ProcessTime]]:
        """(first, last) state of each process."""
        for key, last in self.last.processes.items():
            first = self.first.processes.get(key)
            if first is not None and first.pid == last.pid:
                yield first, last

    def has_full_queue(self) -> bool:
        """Whether a queue is full most of the time, so that rollout is ahead of training."""
        if self.shares.ratio("rollout") > _HARDLY or len(self.moments) < _LEAST_MOMENTS:
            return False
        depths: defaultdict[str, list[float]] = defaultdict(list)
        for moment in self.moments:
            for process in moment.processes.values():
                for queue, depth in process.queue_depth.items():
                    depths[queue].append(depth)
        return any(
            max(series) > 1
            and sum(depth == max(series) for depth in series) >= _MOSTLY * len(series)
            for series in depths.values()
            if len(series) >= _LEAST_MOMENTS
        )

    def process_of(self, engine: EngineFacts) -> tuple[ProcessTime, ProcessTime] | None:
        """(first, last) state of the process of an engine; None if it has no guest."""
        pairs = (pair for pair in self.processes() if pair[1].pid == engine.pid)
        return next(pairs, None)


@dataclass
class FigureHistories:
    """Habits by name of the figure."""

    by_name: defaultdict[str, FigureHistory] = field(
        default_factory=lambda: defaultdict(FigureHistory)
    )

    def add(self, name: str, step: int, value: float | None) -> None:
        if value is not None:
            self.by_name[name].add(step, value)

    def __getitem__(self, name: str) -> FigureHistory:
        return self.by_name[name]


def reported_value(
    facts: Mapping[LabeledMetric, float], metric: str, **labels: str
) -> float | None:
    """The value of a metric that a framework reports with these labels; None if not reported."""
    return facts.get(LabeledMetric(metric, tuple(sorted(labels.items()))))
