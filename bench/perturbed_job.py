"""The documents of a recorded node made into those of a job of many nodes, for a plan of faults.

What a document holds and how it is written is as recorded. Numbers of ranks, steps and groups, the
instants, and the durations of steps (with spread, work and wait made consistent over all nodes) are
those of the job: from a step on one rank is slower, and later one rank stands still.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from bench.recorded_job import RUN, STOPPED, Recording
from dfx_agent.facts.layout import Layout, ProcessGroup, RankPosition
from dfx_agent.facts.ledger import LedgerNews
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.scalars import ReportedScalars, UpdateCounts
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.facts.steps import IDLE, TRANSFER, RankStep, RoleSteps, SchedTimes, Step
from dfx_agent.hub.clocks import Shift
from dfx_agent.wire.job_description import RankRange

FIRST_STEP = 1000
WORK_SHARE, TRANSFER_SHARE, SPREAD = 0.70, 0.01, 0.01
_PIDS = 100_000

Ranks = Mapping[str, tuple[RankFacts, ...]]


@dataclass(frozen=True)
class Plan:
    """Steps are counted from the begin of the job. ``hang_seconds``: since then.

    ``slow_rank`` takes ``slowness`` times as long from ``slow_step`` on; ``hung_rank`` stands.
    """

    num_ranks: int
    ranks_per_node: int
    step_seconds: float
    slow_rank: int
    slow_step: int
    slowness: float
    hung_rank: int
    hang_seconds: float

    @property
    def num_nodes(self) -> int:
        return self.num_ranks // self.ranks_per_node

    def step_at(self, seconds: float) -> int:
        """The one that is running."""
        return int(min(seconds, self.hang_seconds) / self.step_seconds)


@dataclass(frozen=True)
class _Told:
    """A recorded document. ``step``: the one that its ranks were in."""

    facts: RunFacts
    step: int


class PerturbedJob:
    """Of one recording; ``document`` of a node at an instant of the plan."""

    def __init__(self, recording: Recording, plan: Plan) -> None:
        self.plan = plan
        self._stopped_ns = recording.stopped_ns
        reported = [_Told(facts, _step(facts)) for facts in recording.facts()]
        before = [item for item in reported[1:] if item.facts.now_ns < recording.stopped_ns]
        self._full = reported[0]
        stepped = [_with_all_of_step(item, before) for item in before if _num_steps(item)]
        # of the first and the last not all may have been recorded
        self._stepped = stepped[1:-1] if len(stepped) > 3 else stepped
        self._quiet = [item for item in before if not _num_steps(item)]
        self._hung = [item for item in reported if item.facts.now_ns >= recording.stopped_ns]
        if not self._stepped or not self._hung:
            raise RuntimeError("the recording has no step of its own, or no hang")
        self._per_step = _numbers_per_step(self._stepped)

    def whole(self, node: int, seconds: float) -> RunFacts:
        """The first document: all that is known, no step yet."""
        facts = self._changed(self._full, node, seconds)
        return replace(_without_news(facts), ranks=_without_evidence(facts.ranks))

    def news(self, node: int, seconds: float, since_seconds: float) -> RunFacts:
        """What came since the document before."""
        if seconds >= self.plan.hang_seconds:
            return self._standing(node, seconds, since_seconds)
        step, before = self.plan.step_at(seconds), self.plan.step_at(since_seconds)
        if step > before:  # the same record for all nodes: numbers of groups are alike then
            facts = self._changed(self._stepped[step % len(self._stepped)], node, seconds)
            return replace(facts, ranks=_without_evidence(facts.ranks))
        known = self._quiet or self._stepped
        facts = _without_news(self._changed(known[step % len(known)], node, seconds))
        return replace(facts, ranks=_unlearned(_without_evidence(facts.ranks)))

    def _standing(self, node: int, seconds: float, since_seconds: float) -> RunFacts:
        """As recorded so long after the rank was stopped, and what was seen since the one before.

        A node that has nobody who was stopped is as a rank is that waits.
        """
        until_ns, since_ns = (
            self._stopped_ns + int((at - self.plan.hang_seconds) * 1e9)
            for at in (seconds, since_seconds)
        )
        known = [item for item in self._hung if since_ns < item.facts.now_ns <= until_ns]
        last = known[-1] if known else self._nearest(until_ns)
        facts = replace(last.facts, ranks=_with_evidence(known, last))
        if node != self.plan.hung_rank // self.plan.ranks_per_node:
            facts = replace(facts, ranks=_all_waiting(facts.ranks))
        reported = _Told(replace(facts, now_ns=max(until_ns, facts.now_ns)), last.step)
        return _without_news(self._changed(reported, node, seconds))

    def _nearest(self, until_ns: int) -> _Told:
        return min(self._hung, key=lambda item: abs(item.facts.now_ns - until_ns))

    def _changed(self, told: _Told, node: int, seconds: float) -> RunFacts:
        facts, step = told.facts, self.plan.step_at(seconds) + FIRST_STEP
        change = _Change(self, node, seconds, told)
        clock_ns = (node + 1) * 10**12 + int(seconds * 1e9)  # no two nodes have one clock
        ranks = {role: tuple(map(change.rank, entry)) for role, entry in facts.ranks.items()}
        return replace(
            facts,
            run=RUN, node=node_name(node), now_seconds=clock_ns / 1e9, now_ns=clock_ns,
            boot=f"{node:08x}",
            seats=tuple(map(change.seat, facts.seats)),
            ranks=ranks,
            steps=tuple(change.role(role, step) for role in facts.steps),
            memory=tuple(replace(m, process=change.process(m.process)) for m in facts.memory),
            scalars=tuple(map(change.scalars, facts.scalars)),
            updates=tuple(map(change.updates, facts.updates)),
            batches=tuple(map(change.batches, facts.batches)),
            progress=tuple(
                p._replace(
                    process=change.process(p.process), reported_step=change.step(p.reported_step)
                )
                for p in facts.progress
            ),
        )  # fmt: skip

    def numbers_per_step(self, group: str) -> int:
        return self._per_step.get(group, 0)

    @lru_cache(maxsize=4)  # noqa: B019 (one job for each process)
    def work_seconds(self, step: int) -> list[float]:
        """Of each rank in this step of the job."""
        draw, plan = random.Random(step), self.plan
        usual = WORK_SHARE * plan.step_seconds
        found = [usual * (1 + SPREAD * draw.gauss(0, 1)) for _ in range(plan.num_ranks)]
        if step >= plan.slow_step:
            found[plan.slow_rank] *= plan.slowness
        return found


class _Change:
    """Of one document of one node."""

    def __init__(self, job: PerturbedJob, node: int, seconds: float, told: _Told) -> None:
        self._job, self._plan, self._node = job, job.plan, node
        clock_ns = (node + 1) * 10**12 + int(seconds * 1e9)
        self._shift = Shift(clock_ns - told.facts.now_ns, clock_ns / 1e9 - told.facts.now_seconds)
        self._num_steps = self._plan.step_at(seconds) + FIRST_STEP - told.step

    def label(self, label: str) -> str:
        return str(self._node * self._plan.ranks_per_node + int(label))

    def process(self, process: ProcessId) -> ProcessId:
        return process._replace(label=self.label(process.label))

    def step(self, step: int | None) -> int | None:
        return None if step is None else step + self._num_steps

    def number(self, group: str, number: int) -> int:
        return number + self._num_steps * self._job.numbers_per_step(group)

    def seat(self, seat: Seat) -> Seat:
        label = self.label(seat.label)
        return replace(
            seat, label=label, rank=int(label), world_size=self._plan.num_ranks,
            node=node_name(self._node), pid=_PIDS + int(label),
        )  # fmt: skip

    def rank(self, rank: RankFacts) -> RankFacts:
        label, moved = self.label(rank.label), self._shift.rank(rank)
        is_new = bool(rank.begin_ns)
        return replace(
            moved,
            label=label, rank=int(label), pid=_PIDS + int(label),
            world_size=self._plan.num_ranks if is_new else rank.world_size,
            now_ns=0, now_seconds=0.0, begin_ns=moved.begin_ns if is_new else 0,
            step=self.step(rank.step), last_step=self.step(rank.last_step),
            reported_step=self.step(rank.reported_step),
            reached={group: self.number(group, n) for group, n in rank.reached.items()},
            arrivals=tuple(
                a if a.sequence is None else a._replace(sequence=self.number(a.group, a.sequence))
                for a in moved.arrivals
            ),
            operations={
                (group, self.number(group, n)): entry
                for (group, n), entry in rank.operations.items()
            },
        )  # fmt: skip

    def role(self, role: RoleSteps, step: int) -> RoleSteps:
        steps = tuple(self._step(reported, step - 1) for reported in role.steps[-1:])
        return replace(
            role, steps=steps, world_size=self._plan.num_ranks, layout=self._layout(role.layout)
        )

    def _step(self, told: Step, step: int) -> Step:
        num = step - FIRST_STEP
        work = self._job.work_seconds(num)
        wall = max(work) + TRANSFER_SHARE * self._plan.step_seconds
        ranks = {
            self.label(label): self._rank_step(entry, work[int(self.label(label))], wall)
            for label, entry in told.ranks.items()
        }
        begin = (self._node + 1) * 1e3 + num * self._plan.step_seconds
        return replace(told, step=step, begin_seconds=round(begin, 4), ranks=ranks, num_steps=1)

    def _rank_step(self, of: RankStep, work: float, wall: float) -> RankStep:
        transfer = TRANSFER_SHARE * self._plan.step_seconds
        before = sum(seconds for part, seconds in of.parts.items() if part != TRANSFER) or 1.0
        parts = {part: round(s / before * work, 4) for part, s in of.parts.items()}
        blocked, known = wall - work, sum(g.blocked_seconds for g in of.groups.values())
        share = blocked / known if known else 0.0
        groups = {
            name: g._replace(
                latest=self.number(name, g.latest),
                blocked_seconds=round(g.blocked_seconds * share, 4),
            )
            for name, g in of.groups.items()
        }
        return replace(
            of,
            wall_seconds=round(wall, 4), waited_seconds=round(blocked - transfer, 4),
            parts={**parts, TRANSFER: round(transfer, 4), IDLE: parts.get(IDLE, 0.0)},
            busy_seconds=None if of.busy_seconds is None else round(work, 4),
            processor=SchedTimes(int(work * 1e4) * 10**5, 10**6, 1.0), groups=groups,
        )  # fmt: skip

    def _layout(self, layout: Layout) -> Layout:
        places = {self.label(label): self._place(entry) for label, entry in layout.places.items()}
        whole = (RankRange(0, self._plan.num_ranks - 1, 1),)
        groups = tuple(
            ProcessGroup(group.name, group.description, self._plan.num_ranks, whole)
            for group in layout.groups
        )
        return Layout(places, groups)

    def _place(self, place: RankPosition) -> RankPosition:
        """A data place for each rank, as the demo has it."""
        rank = int(self.label(str(place.rank)))
        entry = dict.fromkeys(place.coordinates, rank)
        return replace(
            place, rank=rank, coordinates=entry, sizes=dict.fromkeys(entry, self._plan.num_ranks)
        )

    def scalars(self, told: ReportedScalars) -> ReportedScalars:
        moved = self._shift.scalars(told)
        fresh = tuple(
            s._replace(
                step=self.step(s.step), in_step=self.step(s.in_step),
                time_ns=s.time_ns + self._shift.ns,
            )
            for s in told.scalars
        )  # fmt: skip
        offset = moved.epoch_offset_ns - self._shift.ns
        return replace(
            told, process=self.process(told.process), scalars=fresh, epoch_offset_ns=offset
        )

    def updates(self, told: UpdateCounts) -> UpdateCounts:
        moved = self._shift.updates(told)
        return moved._replace(process=self.process(told.process), step=self.step(told.step))

    def batches(self, news: LedgerNews) -> LedgerNews:
        completed = tuple(
            replace(c, step=self.step(c.step), time_ns=c.time_ns + self._shift.ns)
            for c in news.completed
        )
        return replace(
            news, process=self.process(news.process), completed=completed,
            steps=tuple(map(self.step, news.steps)), given_up=tuple(map(self.step, news.given_up)),
        )  # fmt: skip


def node_name(node: int) -> str:
    return f"node-{node:04d}"


def _step(facts: RunFacts) -> int:
    steps = [rank.step for ranks in facts.ranks.values() for rank in ranks]
    return max((step for step in steps if step is not None), default=0)


def _num_steps(told: _Told) -> int:
    return sum(len(role.steps) for role in told.facts.steps)


def _numbers_per_step(told: Sequence[_Told]) -> dict[str, int]:
    """Collectives of each group in a step of the recording."""
    found: dict[str, int] = {}
    for item in told:
        for role in item.facts.steps:
            for step in role.steps:
                for entry in step.ranks.values():
                    for group, time in entry.groups.items():
                        found[group] = time.num_collectives // step.num_steps
    return found


def _with_all_of_step(told: _Told, recorded: Sequence[_Told]) -> _Told:
    """With all batches and numbers of the step that was closed, and no others."""
    step = max(step.step for role in told.facts.steps for step in role.steps)
    batches: dict[ProcessId, LedgerNews] = {}
    scalars: dict[ProcessId, ReportedScalars] = {}
    for facts in (item.facts for item in recorded):
        for news in facts.batches:
            own = tuple(c for c in news.completed if c.step == step)
            known = batches.get(news.process)
            completed = (*known.completed, *own) if known else own
            batches[news.process] = replace(news, completed=completed, steps=(step,))
        for numbers in facts.scalars:
            mine = tuple(s for s in numbers.scalars if s.step == step)
            before = scalars.get(numbers.process)
            rows = (*before.scalars, *mine) if before else mine
            scalars[numbers.process] = replace(numbers, scalars=rows)
    whole = [news for news in batches.values() if news.completed]
    numbered = [numbers for numbers in scalars.values() if numbers.scalars]
    facts = replace(told.facts, batches=tuple(whole), scalars=tuple(numbered))
    return replace(told, facts=facts)


def _without_news(facts: RunFacts) -> RunFacts:
    """Of what belongs to a step."""
    return replace(facts, steps=tuple(replace(r, steps=()) for r in facts.steps), scalars=(),
                   batches=())  # fmt: skip


def _without_evidence(ranks: Ranks) -> Ranks:
    """Nobody stands: stacks are there because the recorded host was busy."""
    return {
        role: tuple(replace(rank, stacks=None, flight=None) for rank in entry)
        for role, entry in ranks.items()
    }


def _unlearned(ranks: Ranks) -> Ranks:
    """What was learned of a step is told with it."""
    return {
        role: tuple(
            replace(
                rank, step_durations=(), stage_durations={}, collective_durations={}, operations={}
            )
            for rank in entry
        )
        for role, entry in ranks.items()
    }


def _with_evidence(known: Iterable[_Told], newest: _Told) -> Ranks:
    """Stacks and flight records are told once: those of documents in between too."""
    seen: dict[tuple[str, str], RankFacts] = {}
    for item in known:
        for role, ranks in item.facts.ranks.items():
            for rank in ranks:
                before = seen.get((role, rank.label), rank)
                evidence = rank.stacks or before.stacks, rank.flight or before.flight
                seen[role, rank.label] = replace(rank, stacks=evidence[0], flight=evidence[1])
    return {
        role: tuple(seen.get((role, rank.label), rank) for rank in ranks)
        for role, ranks in newest.facts.ranks.items()
    }


def _all_waiting(ranks: Ranks) -> Ranks:
    """With one that waits in the place of the one that was stopped."""
    found = {}
    for role, entry in ranks.items():
        other = next((rank for rank in entry if rank.label != STOPPED), None)
        found[role] = tuple(
            replace(other, label=rank.label, rank=rank.rank, pid=rank.pid)
            if rank.label == STOPPED and other is not None
            else rank
            for rank in entry
        )
    return found
