"""A pipeline by hand: trainers, an orchestrator, two engines; each step tells what it was like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dfx_agent.judge.bottleneck.judge import BottleneckJudge
from dfx_agent.judge.bottleneck.pipeline_facts import LabeledMetric, PipelineFacts, ProcessTime
from dfx_agent.snapshot import (
    Bottleneck,
    EngineFacts,
    EngineState,
    EventLoopRow,
    Histogram,
    LagStats,
    LoopHolder,
    OpenSpan,
    StepCell,
    StepRow,
    TimeSplit,
    Verdict,
)

BEGIN = 1e6
HOST = "(the host: no processor for the loop's thread)"
RANKS = ("0", "1")
_NO_LAG = LagStats(1, 0.0, 0.0, 0.0, 0.0, 0.0)

TOOL = LabeledMetric("dfx_tool_seconds", (("stat", "mean"),))
TURNS = LabeledMetric("dfx_turns", (("stat", "mean"),))
GENERATION = LabeledMetric("dfx_request_latency_seconds", (("stat", "mean"),))


@dataclass
class Replica:
    """Per step: tokens, and seconds for each; totals grow."""

    token_seconds: float = 0.004
    num_tokens: int = 100
    running: float = 2.0
    state: EngineState = "up"
    since_seconds: float = BEGIN
    num_waited_tokens: float = 0.0
    waited_seconds: float = 0.0
    busy_seconds: float = 0.0
    pid: int = 0  # of a process that is seen, or of none


@dataclass
class Pipeline:
    """``stage`` and ``wait`` are seconds of a trainer's step; ``told`` what a framework says."""

    stage: dict[str, float] = field(default_factory=lambda: {"forward": 0.4, "backward": 0.8})
    wait: dict[str, float] = field(default_factory=lambda: {"collector": 0.1})
    told: dict[LabeledMetric, float] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=lambda: [Replica(), Replica()])
    lasts: dict[str, float] = field(default_factory=dict)  # how long stages of the orchestrator do
    queue_depth: dict[str, float] = field(default_factory=dict)
    late_seconds: float = 0.0
    unanswered_seconds: float = 0.0
    holder: str = "step_boundary > dumps (job.py)"
    num_holders: int = 1
    host_share: float = 0.0  # of the lateness
    num_holds: int = 1
    rollout_wait: float = 0.1  # share of a step
    verdicts: tuple[Verdict, ...] = ()
    inflight: Mapping[str, tuple[OpenSpan, ...]] = field(default_factory=dict)
    has_engines: bool = True
    now_seconds: float = BEGIN
    step: int = 0
    _rows: list[StepRow] = field(default_factory=list)
    _late_total: float = 0.0
    _waited_total: float = 0.0
    _judge: BottleneckJudge = field(default_factory=BottleneckJudge)

    def steps(self, number: int) -> Bottleneck:
        """Close so many steps, judging after each."""
        for _ in range(number):
            self.close_step()
            verdict = self.judged()
        assert verdict is not None
        return verdict

    def close_step(self) -> None:
        self.step += 1
        seconds = sum(self.stage.values()) + sum(self.wait.values())
        begin, self.now_seconds = self.now_seconds, self.now_seconds + seconds
        waits = {kind: {"": amount} for kind, amount in self.wait.items()}
        split = TimeSplit(seconds, sum(self.stage.values()), 0.0, dict(self.stage), waits)
        cells = tuple(StepCell(rank, split, {}) for rank in RANKS)
        self._rows.append(StepRow(self.step, "trainer", begin, self.now_seconds, (), None, cells))
        self._late_total += self.late_seconds
        self._waited_total += self.rollout_wait * seconds
        for replica in self.replicas:
            replica.num_waited_tokens += replica.num_tokens
            replica.waited_seconds += replica.num_tokens * replica.token_seconds
            replica.busy_seconds += 0.8 * seconds

    def passes(self, seconds: float) -> Bottleneck | None:
        """Time goes by and no step closes."""
        self.now_seconds += seconds
        return self.judged()

    def judged(self) -> Bottleneck | None:
        return self._judge.verdict(self.facts())

    def facts(self) -> PipelineFacts:
        return PipelineFacts(
            now_seconds=self.now_seconds,
            steps=tuple(self._rows[-16:]),
            processes=tuple(self._processes()),
            engines=tuple(self._engines()) if self.has_engines else (),
            reported=dict(self.told),
            verdicts=self.verdicts,
        )

    def _processes(self) -> Iterator[ProcessTime]:
        for rank in RANKS:
            yield ProcessTime(
                "trainer", rank, 10 + int(rank), TimeSplit(), self.inflight.get("trainer", ())
            )
        host = LoopHolder(HOST, self.host_share * self.late_seconds, 9, 0.1)
        item = (1.0 - self.host_share) * self.late_seconds / self.num_holders
        names = [self.holder, *(f"place {at} (job.py)" for at in range(1, self.num_holders))]
        own = (LoopHolder(name, item, self.num_holds, item / self.num_holds) for name in names[:8])
        holders = (*([host] if self.host_share else []), *own)
        loop = EventLoopRow(
            60.0, _NO_LAG, None, self.late_seconds, holders if self.late_seconds else (),
            self._late_total, None, self.unanswered_seconds, self.holder,
        )  # fmt: skip
        wall = self.now_seconds - BEGIN
        waits = {"queue": {"": self._waited_total}}
        totals = TimeSplit(wall, wall - self._waited_total, 0.0, {}, waits)
        figures = dict(self.lasts), dict(self.queue_depth)
        yield ProcessTime("orchestrator", "p5", 5, totals, (), loop, *figures)
        for number in range(len(self.replicas)):
            inflight = self.inflight.get(f"rollout {number}", ())
            yield ProcessTime("rollout", str(number), 20 + number, totals, inflight)

    def _engines(self) -> Iterator[EngineFacts]:
        for number, replica in enumerate(self.replicas):
            histogram = Histogram((), (replica.num_waited_tokens,), replica.waited_seconds)
            yield EngineFacts(
                str(number), "", f"http://engine{number}", replica.state,
                replica.since_seconds, model="tiny",
                num_readings=9, reason="nobody answers" if replica.state == "gone" else "",
                pid=replica.pid or 120 + number, read_seconds=self.now_seconds,
                busy_seconds=replica.busy_seconds, observed_seconds=self.now_seconds - BEGIN,
                busy_ratio=0.8, window_seconds=60.0,
                gauges={"running_requests": replica.running},
                totals={"generation_tokens": replica.num_waited_tokens},
                histograms={"inter_token_latency_seconds": histogram},
            )  # fmt: skip
