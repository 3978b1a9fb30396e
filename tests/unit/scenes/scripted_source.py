"""A deterministic make-believe run behind the Source protocol, for tests of the page and the API.

GRPO-like steps of about six seconds: rank 2 samples a little slower, the others wait for it at a
barrier, gradients meet in a collective. Everything follows from the seed and the clock; faults
begin in the step that is running when the source is made.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scripted_torch import CLEAR, dressed

from dfx_agent.job.incidents.book import IncidentBook, StepTimes
from dfx_agent.job.incidents.conclude import standing_of
from dfx_agent.snapshot import (
    AgentRow,
    AlertRow,
    Moments,
    OpenSpan,
    Piece,
    RankRow,
    RunRow,
    ScalarHistory,
    ScalarRow,
    SegmentProblem,
    SignalHistory,
    SignalSeries,
    SignalState,
    Snapshot,
    StepCell,
    StepRow,
    TimelineRow,
    TimeSplit,
    Verdict,
)

RUN = "gsm8k-grpo"
NODE = "node-17"
NUM_SHOWN_STEPS = 20
NAN_STEP = 31
POLL_SECONDS = 0.25
FOREVER = 1e9

# native key -> (canonical metric, labels, unit, value of a step and its noise in -1..1)
SCALARS: dict[str, tuple[str | None, dict[str, str], str, Callable[[int, float], float]]] = {
    "critic/rewards/mean": (
        "dfx_reward",
        {"stat": "mean"},
        "reward",
        lambda s, n: 0.9 / (1 + math.exp(-(s - 20) / 8)) + 0.03 * n,
    ),
    "critic/rewards/max": ("dfx_reward", {"stat": "max"}, "reward", lambda s, n: 1.0),
    "critic/rewards/min": ("dfx_reward", {"stat": "min"}, "reward", lambda s, n: 0.0),
    "actor/ppo_kl": (
        "dfx_policy_kl_k1_nats",
        {},
        "nats",
        lambda s, n: 8e-4 + 6e-5 * s + 2e-4 * n,
    ),
    "actor/kl_loss": ("dfx_ref_kl_nats", {}, "nats", lambda s, n: 2.2e-4 * s + 3e-4 * abs(n)),
    "actor/entropy": (
        "dfx_actor_entropy_nats",
        {},
        "nats",
        lambda s, n: 1.9 * math.exp(-s / 60) + 0.03 * n,
    ),
    "actor/grad_norm": (
        "dfx_actor_grad_norm",
        {},
        "1",
        lambda s, n: math.nan if s == NAN_STEP else 0.6 + 0.8 * math.exp(-s / 15) + 0.12 * n,
    ),
    "actor/pg_loss": ("dfx_actor_policy_loss", {}, "1", lambda s, n: -0.02 + 0.015 * n),
    "actor/pg_clipfrac": ("dfx_clip_ratio", {}, "ratio", lambda s, n: 0.03 + 0.01 * n),
    "actor/lr": ("dfx_learning_rate", {}, "1", lambda s, n: 1e-6 * min(1.0, (s + 1) / 10)),
    "response_length/mean": (
        "dfx_response_length_tokens",
        {"stat": "mean"},
        "tokens",
        lambda s, n: 412 + 4.1 * s + 18 * n,
    ),
    "response_length/clip_ratio": (
        "dfx_response_clip_ratio",
        {},
        "ratio",
        lambda s, n: max(0.0, 0.02 + 0.01 * n),
    ),
    "prompt_length/mean": (
        "dfx_prompt_length_tokens",
        {"stat": "mean"},
        "tokens",
        lambda s, n: 96 + 3 * n,
    ),
    "perf/throughput": (None, {}, "", lambda s, n: 10_480 + 240 * n),
    "perf/max_memory_allocated_gb": (None, {}, "", lambda s, n: 61.2 + 0.4 * n),
    "training/epoch": (None, {}, "", lambda s, n: float(s // 30)),
    "my_team/tool_calls_per_answer": (None, {}, "", lambda s, n: 1.2 + 0.02 * s + 0.1 * n),
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time spent at one place: inside ``path`` (outermost first), waiting if ``wait`` is set."""

    begin: float
    end: float
    path: tuple[str, ...]
    wait: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptedStep:
    """One step of all ranks; seconds since the run began."""

    begin: float
    end: float
    ranks: tuple[tuple[Stretch, ...], ...]


class ScriptedSource:
    """Implements ``dfx_agent.snapshot.Source``.

    ``renames`` maps stage names to what the job calls them, ``without`` lists native keys that the
    job does not report, ``run_names`` are the runs (all alike), ``dress`` changes every rank and
    ``verdicts`` are what the agent concludes; each may be changed while served.
    """

    def __init__(
        self,
        num_ranks: int = 4,
        *,
        clock: Callable[[], float] = time.time,
        num_past_steps: int = 45,
        seconds_into_step: float = 1.0,
        dead_rank: int | None = None,
        stuck_rank: int | None = None,
        without: Sequence[str] = (),
        num_polls: int = 1,
    ) -> None:
        self.renames: dict[str, str] = {}
        self.without = set(without)
        self.problems: tuple[SegmentProblem, ...] = ()
        self.other_agent_pid: int | None = None
        self.num_lost_records: dict[int, int] = {}
        self.run_names: tuple[str, ...] = (RUN,)
        self.dress: Callable[[RankRow], RankRow] = dressed
        self.verdicts: tuple[Verdict, ...] = CLEAR
        self.alert_rows: tuple[AlertRow, ...] = ()
        self._book = IncidentBook(RUN)
        self.signals: SignalState | None = None
        self.num_resets = 0
        self._num_ranks = num_ranks
        self._clock = clock
        self._fault_step = num_past_steps
        self._dead_rank = dead_rank
        self._stuck_rank = stuck_rank
        self._num_polls = num_polls
        self._snapshot: Snapshot | None = None
        self._step = lru_cache(maxsize=None)(self._write_step)
        for past in range(num_past_steps):  # in order, so that no call recurses deeply
            self._step(past)
        self._t0 = clock() - self._step(num_past_steps).begin - seconds_into_step

    # What the renderers ask.

    def snapshot(self) -> Snapshot:
        now = self._clock()
        last = self._snapshot
        if last is None or now - last.time_seconds >= POLL_SECONDS:
            runs = tuple(replace(self._run(now), run=name) for name in self.run_names)
            self._snapshot = Snapshot(now, self._agent(), runs)
        assert self._snapshot is not None
        return self._snapshot

    def scalar_history(self, run: str, keys: Sequence[str]) -> tuple[ScalarHistory, ...]:
        self._check(run)
        num_steps = self._running_step(self._clock())
        wanted = [key for key in (keys or SCALARS) if key in SCALARS and key not in self.without]
        steps = tuple(range(num_steps))
        return tuple(
            ScalarHistory(
                key,
                SCALARS[key][0],
                SCALARS[key][2],
                steps,
                tuple(self._value(key, step) for step in steps),
            )
            for key in wanted
        )

    def timeline(
        self, run: str, num_steps: int, ranks: Collection[tuple[str, str]] = ()
    ) -> tuple[TimelineRow, ...]:
        self._check(run)
        now = self._clock()
        running = self._running_step(now)
        return tuple(
            self._timeline_row(step, rank, now)
            for rank in range(self._num_ranks)
            if not ranks or ("actor", str(rank)) in ranks
            for step in range(max(0, running - num_steps + 1), running + 1)
        )

    def signal_history(self, run: str, num_steps: int) -> SignalHistory:
        self._check(run)
        names = () if self.signals is None else tuple(r.signal for r in self.signals.signals)
        steps = tuple(range(num_steps))
        values, low, high = ((level,) * num_steps for level in (0.5, 0.4, 0.6))
        rows = tuple(SignalSeries(name, values, low, high, values) for name in names)
        return SignalHistory(steps, (False,) * num_steps, rows, ())

    def reset_signals(self, run: str) -> None:
        self._check(run)
        self.num_resets += 1

    def _check(self, run: str) -> None:
        if run not in self.run_names:
            raise KeyError(run)

    # The script.

    def _write_step(self, step: int) -> ScriptedStep:
        begin = self._step(step - 1).end if step else 0.0
        ranks = [self._write_rollout(step, rank, begin) for rank in range(self._num_ranks)]
        meet = max(stretches[-1].end for stretches in ranks)
        for stretches in ranks:
            stretches.append(Stretch(stretches[-1].end, meet, (), "barrier"))
        starts = [self._write_update(step, rank, out) for rank, out in enumerate(ranks)]
        meet = max(starts)
        for stretches in ranks:
            self._write_tail(step, stretches, meet)
        end = max(stretches[-1].end for stretches in ranks)
        if self._has_fault and step == self._fault_step:
            end = FOREVER
        return ScriptedStep(begin, end, tuple(tuple(stretches) for stretches in ranks))

    @property
    def _has_fault(self) -> bool:
        return self._dead_rank is not None or self._stuck_rank is not None

    def _write_rollout(self, step: int, rank: int, begin: float) -> list[Stretch]:
        noise = random.Random(f"{step}:{rank}:rollout")
        slow = 1.22 if rank == 2 else 1.0
        out = [Stretch(begin, begin + 0.06, ("rollout",), "policy")]
        stuck = rank == self._stuck_rank and step == self._fault_step
        _extend(out, FOREVER if stuck else slow * noise.uniform(2.1, 2.4), "rollout")
        _extend(out, noise.uniform(0.2, 0.3), "reward")
        _extend(out, noise.uniform(0.33, 0.38), "old_logprob")
        _extend(out, noise.uniform(0.28, 0.32), "ref_logprob")
        _extend(out, noise.uniform(0.05, 0.07), "advantage")
        return out

    def _write_update(self, step: int, rank: int, out: list[Stretch]) -> float:
        noise = random.Random(f"{step}:{rank}:update")
        _extend(out, noise.uniform(0.03, 0.05), "actor_update")
        for _ in range(2):
            _extend(out, noise.uniform(0.24, 0.28), "actor_update", "forward")
            _extend(out, noise.uniform(0.43, 0.52), "actor_update", "backward")
        if rank == self._dead_rank and step == self._fault_step:
            out[-1] = Stretch(out[-1].begin, FOREVER, out[-1].path)
        return out[-1].end

    def _write_tail(self, step: int, out: list[Stretch], meet: float) -> None:
        path = ("actor_update", "backward")
        out.append(Stretch(out[-1].end, meet + 0.08, path, "collective"))
        _extend(out, 0.14, "actor_update", "optimizer")
        _extend(out, 0.22, "weight_sync")
        if step % 5 == 4:
            _extend(out, 0.7, "validation")
        if step % 10 == 9:
            _extend(out, 0.5, "checkpoint")
        _extend(out, 0.09)

    # Reading the script at one instant.

    def _running_step(self, now: float) -> int:
        offset = now - self._t0
        return next(k for k in itertools.count() if self._step(k).end > offset)

    def _so_far(self, step: int, rank: int, now: float) -> list[Stretch]:
        """The rank's stretches of a step up to now; a dead rank's end where it died."""
        offset = min(now - self._t0, self._death if rank == self._dead_rank else FOREVER)
        begun = [s for s in self._step(step).ranks[rank] if s.begin < min(offset, s.end)]
        return [Stretch(s.begin, min(s.end, offset), s.path, s.wait) for s in begun]

    @property
    def _death(self) -> float:
        stretches = self._step(self._fault_step).ranks[self._dead_rank or 0]
        return next(s.begin for s in stretches if s.end == FOREVER) + 0.2

    def _name(self, path: tuple[str, ...]) -> str:
        return self.renames.get(path[-1], path[-1]) if path else ""

    def _split(self, stretches: Sequence[Stretch]) -> TimeSplit:
        stages: dict[str, float] = {}
        waits: dict[str, dict[str, float]] = {}
        idle = 0.0
        for s in stretches:
            seconds, name = s.end - s.begin, self._name(s.path)
            if s.wait:
                by_stage = waits.setdefault(s.wait, {})
                by_stage[name] = by_stage.get(name, 0.0) + seconds
            elif name:
                stages[name] = stages.get(name, 0.0) + seconds
            else:
                idle += seconds
        wall = stretches[-1].end - stretches[0].begin if stretches else 0.0
        return TimeSplit(wall, sum(stages.values()), idle, stages, waits)

    def _inflight(self, stretches: Sequence[Stretch], now: float, step: int) -> list[OpenSpan]:
        here = stretches[-1]
        spans = []
        for depth in range(1, len(here.path) + 1):
            inside = itertools.takewhile(
                lambda s, prefix=here.path[:depth]: s.path[: len(prefix)] == prefix,
                reversed(stretches),
            )
            begin = self._t0 + min(s.begin for s in inside)
            name = self._name(here.path[:depth])
            spans.append(OpenSpan("stage", name, begin, now - begin, step))
        if here.wait:
            begin = self._t0 + here.begin
            spans.append(OpenSpan("wait", here.wait, begin, now - begin, step))
        return spans

    def _run(self, now: float) -> RunRow:
        running = self._running_step(now)
        steps = tuple(self._step_row(k) for k in range(max(0, running - NUM_SHOWN_STEPS), running))
        scalars = self._scalars(running - 1) if running else ()
        rows = (self._rank(rank, running, now, scalars) for rank in range(self._num_ranks))
        ranks = tuple(self.dress(row) for row in rows)
        begins = [(row.role, row.step, row.begin_seconds) for row in steps]
        begins += [("actor", running, steps[-1].end_seconds)] if steps else []
        times = StepTimes(tuple(begins))
        incidents = self._book.observe(self.verdicts, self.alert_rows, self.signals, times, now)
        known = {
            "verdicts": self.verdicts,
            "signals": self.signals,
            "incidents": incidents,
            "standing": standing_of(self.verdicts, incidents, has_steps=bool(steps)),
        }
        return RunRow(RUN, "verl", 0, self._t0, ranks, steps, scalars, **known)

    def _rank(self, rank: int, running: int, now: float, scalars: tuple[ScalarRow, ...]) -> RankRow:
        so_far = self._so_far(running, rank, now)
        died = rank == self._dead_rank and now - self._t0 >= self._death
        until = self._t0 + so_far[-1].end if died else now
        last = self._split(self._step(running - 1).ranks[rank]) if running else None
        return RankRow(
            role="actor",
            rank=str(rank),
            local_rank=rank % 8,
            world_size=self._num_ranks,
            node=NODE if rank < 8 else "node-18",
            pid=41_200 + rank,
            attempt=0,
            state="died" if died else "live",
            begin_seconds=self._t0,
            last_event_seconds=self._t0 + so_far[-1].begin,
            step=running,
            step_begin_seconds=self._t0 + self._step(running).begin,
            inflight=tuple(self._inflight(so_far, until, running)),
            totals=last or TimeSplit(),
            current=self._split(so_far),
            last=last,
            tokens_total={"response": 15_000.0 * running},
            queue_depth={},
            policy_version=running,
            scalars=scalars if rank == 0 else (),
            stamps=(),
            num_records=40 * running,
            num_lost_records=self.num_lost_records.get(rank, 0),
            num_late_records=0,
            num_guest_drops=0,
        )

    def _step_row(self, step: int) -> StepRow:
        script = self._step(step)
        cells = tuple(
            StepCell(str(rank), self._split(stretches), {"response": 15_000.0 + 310 * rank})
            for rank, stretches in enumerate(script.ranks)
        )
        wall = script.end - script.begin
        active = sum(cell.split.active_seconds for cell in cells)
        bubble = 1 - active / (self._num_ranks * wall)
        begin, end = self._t0 + script.begin, self._t0 + script.end
        return StepRow(step, "actor", begin, end, (), bubble, cells)

    def _timeline_row(self, step: int, rank: int, now: float) -> TimelineRow:
        stretches = self._so_far(step, rank, now)
        pieces = tuple(
            Piece(
                "wait" if s.wait else "stage" if s.path else "idle",
                s.wait or self._name(s.path),
                self._t0 + s.begin,
                self._t0 + s.end,
            )
            for s in stretches
        )
        script = self._step(step)
        is_closed = script.end <= now - self._t0
        end = self._t0 + script.end if is_closed else None
        return TimelineRow("actor", str(rank), step, self._t0 + script.begin, end, 0, pieces)

    def _value(self, key: str, step: int) -> float:
        noise = random.Random(f"{key}:{step}").uniform(-1, 1)
        return SCALARS[key][3](step, noise)

    def _scalars(self, step: int) -> tuple[ScalarRow, ...]:
        time_seconds = self._t0 + self._step(step).end
        return tuple(
            ScalarRow(
                key, metric, labels, step, time_seconds, Moments.of_value(self._value(key, step))
            )
            for key, (metric, labels, _, _) in SCALARS.items()
            if key not in self.without
        )

    def _agent(self) -> AgentRow:
        return AgentRow(
            version="0.1.0",
            pid=41_100,
            node=NODE,
            begin_seconds=self._t0,
            num_polls=self._num_polls,
            poll_elapsed_seconds=0.0021,
            num_segments=self._num_ranks + len(self.problems),
            num_records=1_204_000,
            num_lost_records=sum(self.num_lost_records.values()),
            num_reaped_segments=0,
            num_exporter_errors=0,
            other_agent_pid=self.other_agent_pid,
            problems=self.problems,
        )


def _extend(out: list[Stretch], seconds: float, *path: str) -> None:
    begin = out[-1].end
    out.append(Stretch(begin, FOREVER if seconds == FOREVER else begin + seconds, path))
