"""The newest steps of a pipeline, and what its processes and engines did meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dfx_agent.facts.pipeline import PipelineFacts, ProcessTime, Told
from dfx_agent.judge.bottleneck.habit import Habit
from dfx_agent.judge.bottleneck.step_shares import StepShares
from dfx_agent.snapshot import EngineFacts, StepRow

_HARDLY, _MOSTLY, _LEAST_MOMENTS = 0.05, 0.75, 3

EngineKey = tuple[str, str]  # replica, data parallel rank


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
