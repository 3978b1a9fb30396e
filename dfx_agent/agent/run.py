"""Processes folded into a run: who is which rank, what they brought, what is concluded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from math import inf

from dfx_agent.agent.config_flops import ConfigFlops
from dfx_agent.agent.hang_watch import HangWatch
from dfx_agent.agent.peak_flops import Peaks
from dfx_agent.agent.step_rows import StepRows
from dfx_agent.agent.telling import Teller
from dfx_agent.catalogue.native.time_series import ScalarStore
from dfx_agent.facts.devices import Reported
from dfx_agent.facts.scalars import ScalarRecord, ToldScalars
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.job.incidents.book import IncidentBook, StepTimes
from dfx_agent.judge.bottleneck.judge import BottleneckJudge
from dfx_agent.judge.data.ledger import RunLedger
from dfx_agent.judge.divergence.health import RunHealth
from dfx_agent.judge.divergence.skipped_updates import SkippedUpdates
from dfx_agent.judge.divergence.verdict import broken_verdict, divergence_verdict, unseen_verdict
from dfx_agent.judge.hang.judge import KINDS
from dfx_agent.judge.memory.judge import MemoryJudge
from dfx_agent.judge.part_of_job import crashes_of_this_node, only_what_is_seen, part_text
from dfx_agent.judge.reconcile import Pace, paces, reconciled
from dfx_agent.judge.reported import with_reported
from dfx_agent.judge.straggler.division import Places, RankPlaces
from dfx_agent.judge.straggler.judge import StragglerJudge
from dfx_agent.node.collectives.matching import Collectives
from dfx_agent.node.crossings import Crossings
from dfx_agent.node.ended import DroppedProcesses, surplus
from dfx_agent.node.engines.pool import IdleCheck
from dfx_agent.node.memory_facts import MemoryReader
from dfx_agent.node.passive import OutsideProcess, verdicts
from dfx_agent.node.process import ClosedStep, Process
from dfx_agent.node.scalars.rows import ScalarRows
from dfx_agent.node.steps import StepWatch
from dfx_agent.node.updates import update_counts
from dfx_agent.rules.conditions import Condition
from dfx_agent.rules.declared.stability import DIVERGENCE
from dfx_agent.snapshot import AlertRow, RunVerdicts, StepRow, Verdict
from dfx_agent.snapshot.faults import Faults, unjudged

_NUM_STILL_STEPS = 16  # that say how long a step takes
# judgements that verdicts go on from, as faults name them
_STEPS, _HANGS, _SIGNALS, _LEDGER = "closed steps", "waits", "signals", "batches"


class RunFold:
    """One run by name."""

    def __init__(
        self,
        run: str,
        critical: Condition = DIVERGENCE.condition,
        faults: Faults | None = None,
        peak_tflops: Mapping[str, float] | None = None,
        model_configs: Mapping[str, ConfigFlops] | None = None,
    ) -> None:
        self.run = run
        self.peaks, self.model_configs = Peaks(peak_tflops), model_configs or {}
        self.faults = faults or Faults()
        self.processes: dict[tuple[str, str], Process] = {}
        self.dropped = DroppedProcesses()
        self.outside: tuple[OutsideProcess, ...] = ()
        self.reported: tuple[Reported, ...] = ()  # by devices of this machine
        self.store = ScalarStore()
        self._fresh: list[tuple[ScalarRecord, str, int]] = []  # of this reading, label, attempt
        self.collectives = Collectives()
        self.hangs = HangWatch(self.faults, run)
        self.memory, self._memory_judge = MemoryReader(), MemoryJudge()
        self.memory_verdicts: tuple[Verdict, ...] = ()  # when they were last asked for
        self.health = RunHealth(critical)
        self.skipped_updates = SkippedUpdates()
        self.crossings, self.ledger = Crossings(), RunLedger()
        self.incidents = IncidentBook(run)
        self.concluded: RunVerdicts | None = None  # when it was last rendered
        self.idle_check = IdleCheck()
        self.bottleneck = BottleneckJudge()
        self.alerts: tuple[AlertRow, ...] | None = ()  # None: not evaluated yet
        self._step_rows = StepRows()
        self.scalar_rows = ScalarRows()
        self._watches: dict[str, StepWatch] = {}
        self._stragglers = StragglerJudge()
        self._places: dict[str, RankPlaces] = {}
        self.teller: Teller | None = None  # what a hub is told, where there is one

    @property
    def rows(self) -> Mapping[tuple[str, int], StepRow]:
        """(role, step) -> its row, of the closed steps that are kept."""
        return self._step_rows.rows

    def newest_rows(self, num_steps: int) -> tuple[StepRow, ...]:
        """Closed steps by begin, the newest ``num_steps`` of every role."""
        return self._step_rows.newest(num_steps)

    @property
    def attempt(self) -> int:
        attempts = (p.attempt for p in self.processes.values())
        return max(self.dropped.attempt, *attempts, 0)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it lives."""
        return not self.outside and not any(p.is_living for p in self.processes.values())

    @property
    def newest_ns(self) -> int:
        """When it last told something, on the guest's monotonic clock; 0 when it has nobody."""
        events = (p.last_event_ns or p.follower.begin_ns for p in self.processes.values())
        return max(events, default=0)

    @property
    def framework(self) -> str:
        names = (p.follower.identity.framework for p in self.processes.values())
        return next((name for name in names if name), self.dropped.framework)

    def framework_of(self, process: Process) -> str:
        """Whose names its keys are: a process that names no framework speaks as its run does."""
        return process.follower.identity.framework or self.framework

    @property
    def begin_seconds(self) -> float:
        begins = [p.follower.preamble.created_epoch_ns / 1e9 for p in self.processes.values()]
        begins += [*(p.begin_seconds for p in self.outside), self.dropped.begin_seconds]
        return min((begin for begin in begins if begin < inf), default=0.0)

    def adopt(self, process: Process) -> Process | None:
        """Give a new process its place; returns the dead one whose place it takes."""
        identity = process.follower.identity
        pid = process.follower.preamble.pid
        process.label = str(identity.rank) if identity.rank >= 0 else f"p{pid}"
        before = self.processes.get((identity.role, process.label))
        if before is not None and before.follower_lives() and not before.became(process):
            process.label += f".{pid}"
            before = self.processes.get((identity.role, process.label))
        process.filed_as = identity
        if before is not None:
            process.succeed(before)
        else:
            self.dropped.give_to(process)
        self.processes[identity.role, process.label] = process
        return before

    def release(self, process: Process) -> None:
        """It belongs elsewhere: take it out of this run."""
        self.processes = {key: p for key, p in self.processes.items() if p is not process}

    def let_go_ended(self) -> None:
        """Keep the newest of the processes that have ended, and count the others."""
        for process in surplus(self.processes.values()):
            self._let_go(process)

    def _let_go(self, process: Process) -> None:
        role, label = process.filed_as.role, process.label
        self.release(process)
        self.dropped.add(process)
        self.collectives.let_go(process)
        self.ledger.let_go(process.id, self.crossings.let_go(process))
        self.scalar_rows.let_go(role, label)
        if all(other != label for _, other in self.processes):
            self.store.let_go(label)
        if self.teller is not None:
            self.teller.let_go(process)
        if role in self._watches:
            self._watches[role].let_go(process)
        self._step_rows.let_go(role, label)

    def add(self, process: Process, scalars: list[ScalarRecord], steps: list[ClosedStep]) -> None:
        """What one reading of a process brought."""
        self._fresh += ((scalar, process.label, process.attempt) for scalar in scalars)
        if scalars:  # a run without a framework is asked in all its processes
            framework, offset_ns = self.framework_of(process), process.follower.epoch_offset_ns
            told = ToldScalars(process.id, framework, tuple(scalars), offset_ns)
            self.health.add(told)
            if self.teller is not None:
                self.teller.add_scalars(told)
        self.collectives.add(process)
        crossed = self.crossings.news(process)
        if crossed is not None:
            self.ledger.add(crossed)
        if self.teller is not None:
            self.teller.add_reading(process, steps, crossed)
        watch = self._watches.get(process.filed_as.role)
        if watch is None:
            watch = self._watches[process.filed_as.role] = StepWatch()
        watch.add(process, steps)
        for step in steps:
            self._step_rows.add(process, step, self.processes)

    def close_steps(self, begin_ns: int) -> None:
        """All processes were read since ``begin_ns``: close steps that are over, and judge."""
        guard, run = self.faults.guard, self.run
        with guard("judgement", run, "scalars"):
            self._store_scalars()
        with guard("judgement", run, _STEPS):
            self.collectives.settle()
            for role, watch in self._watches.items():
                closed = watch.close(self._living(role), self.collectives)
                if self.teller is not None:
                    self.teller.add_steps(role, closed)
        with guard("judgement", run, "rows of steps"):
            self._step_rows.close(self.processes)
        with guard("judgement", run, _HANGS):
            self.hangs.observe(self._trained(), begin_ns)
        with guard("judgement", run, _SIGNALS):
            told = {p.id: p.told_step for p in self.processes.values() if p.is_living}
            self.health.close(told)
            self.skipped_updates.observe(update_counts(self.processes.values()))
        with guard("judgement", run, _LEDGER):
            reporting = self.crossings.progress(self.processes.values())
            self.ledger.settle(reporting, is_whole=self._is_whole())

    def _store_scalars(self) -> None:
        """In the order of events: one reading may bring many steps of one rank after another's."""
        fresh, self._fresh = self._fresh, []
        for scalar, label, attempt in sorted(fresh, key=lambda each: each[0].time_ns):
            self.store.add(scalar.key, label, attempt, scalar.step, scalar.value)

    def verdicts(self) -> tuple[Verdict, ...]:
        """What is concluded now: hang, crash, straggler by role; divergence, data of the run.

        Each is judged by itself: what cannot be judged is said in its place.
        """
        judged, run = self.faults.judged, self.run
        watches = [(role, watch) for role, watch in self._watches.items() if role != LOG_ROLE]
        stragglers = [
            judged(run, "straggler", role, partial(self._straggler, role, watch), _STEPS)
            for role, watch in watches
        ]
        of_run = (
            judged(run, "divergence", "", self._divergence, _SIGNALS),
            judged(run, "data", "", self.ledger.verdict, _LEDGER),
        )
        memory = self.faults.judged_roles(run, "memory", self._of_memory)
        of_ranks = *self._waits(), *filter(None, stragglers)
        seats = [p.seat for p in self._trained().values()]
        seen = crashes_of_this_node(only_what_is_seen(of_ranks, seats), seats)
        found = *with_reported(seen, self.reported), *memory, *filter(None, of_run)
        told = self.faults.told(run, (*found, *verdicts(self.outside)))
        return reconciled(told, self._paces())

    def _paces(self) -> dict[str, Pace]:
        spans: dict[str, list[tuple[float, float]]] = {
            role: [] for (role, _), process in self.processes.items() if process.is_living
        }
        for row in self.newest_rows(_NUM_STILL_STEPS):
            if row.role in spans:
                spans[row.role].append((row.begin_seconds, row.end_seconds))
        now_ns, living = time.monotonic_ns(), (p for p in self.processes.values() if p.is_living)
        now_seconds = max((p.follower.epoch_seconds(now_ns) for p in living), default=0.0)
        return paces(spans, now_seconds)

    def part(self) -> str:
        """What part of its job is seen here, in words; "" for all of it."""
        return part_text(process.seat for process in self._trained().values())

    def _of_memory(self) -> tuple[Verdict, ...]:
        facts = self.memory.facts(self._trained().values())
        self.memory_verdicts = self._memory_judge.verdicts(facts, time.time())
        return self.memory_verdicts

    def _trained(self) -> dict[tuple[str, str], Process]:
        return {
            key: p
            for key, p in self.processes.items()
            if key[0] != LOG_ROLE and not p.follower.is_told_late and p.state != "detached"
        }

    def _waits(self) -> tuple[Verdict, ...]:
        """Hangs and crashes as of the last reading, if that could be looked through."""
        fault = self.faults.of(self.run, _HANGS)
        if fault is None:
            return self.hangs.verdicts
        roles = dict.fromkeys(role for role, _ in self.processes if role != LOG_ROLE)
        return tuple(unjudged(kind, role, fault) for role in roles for kind in KINDS)

    def step_times(self) -> StepTimes:
        """Begins of the closed steps that are kept, and of those that are running."""
        closed = [(role, step, row.begin_seconds) for (role, step), row in self.rows.items()]
        running = [
            (role, p.step, p.follower.epoch_seconds(p.account.current.begin_ns))
            for (role, _), p in self.processes.items()
            if p.account is not None and p.step is not None and role != LOG_ROLE
        ]
        return StepTimes((*closed, *running))

    def _is_whole(self) -> bool:
        """Whether every rank of every role is followed by this agent."""
        roles = Counter(role for role, _ in self.processes)
        return all(
            p.follower.identity.world_size <= roles[role] for (role, _), p in self.processes.items()
        )

    def _divergence(self) -> Verdict | None:
        """None for a run that makes no steps of an optimizer: there is nothing to judge."""
        state, role = self.health.state, next(iter(self.health.roles), "")
        is_scaled = any(p.counters.get("skipped_updates") for p in self.processes.values())
        breaks = self.health.broken.breaks(is_scaled=is_scaled)
        if breaks:
            return broken_verdict(breaks, state, role)
        skipped = self.skipped_updates.verdict()
        if skipped is not None:
            return skipped
        if state is None:
            roles = (p.filed_as.role for p in self.processes.values() if _trains(p))
            trainer = min(roles, default=None)
            return None if trainer is None else unseen_verdict(trainer)
        return divergence_verdict(state, role, self.health.critical, self._checkpoints())

    def _checkpoints(self) -> set[int]:
        """Steps, of those kept, in which a rank was in the stage of that name."""
        return {
            row.step
            for row in self.rows.values()
            if any("checkpoint" in cell.split.stage_seconds for cell in row.cells)
        }

    def _straggler(self, role: str, watch: StepWatch) -> Verdict | None:
        """None for a role that nobody has any more, or whose processes never meet."""
        ranks = [p for (r, _), p in self.processes.items() if r == role]
        if all(p.follower.is_told_late for p in ranks):
            return None
        if not ranks or (self._counts_steps_without(role) and not any(map(_meets_others, ranks))):
            return None
        return self._stragglers.verdict(watch.facts(role, ranks, self.collectives))

    def told(self) -> Teller:
        """From now on what a hub is to know is kept for it."""
        if self.teller is None:
            self.teller = Teller()
        return self.teller

    def role_steps(self, role: str, ranks: Collection[Process]) -> RoleSteps:
        """What is closed by now of these ranks of a role, at least one."""
        return self._watches.setdefault(role, StepWatch()).facts(role, ranks, self.collectives)

    def places(self) -> dict[str, Places]:
        """Role -> where its ranks stand in the layout of the job, as they told it."""
        found: dict[str, Places] = {}
        for role, watch in self._watches.items():
            ranks = [p for (r, _), p in self.processes.items() if r == role]
            labels = [process.label for process in ranks]
            known = self._places.setdefault(role, RankPlaces())
            found[role] = known.of([watch.layout(ranks)], labels, partial(watch.layout, ranks))
        return found

    def _counts_steps_without(self, role: str) -> bool:
        """Whether the job has steps, in other roles than this one."""
        return any(p.step is not None for (r, _), p in self.processes.items() if r != role)

    def _living(self, role: str) -> list[Process]:
        return [p for (r, _), p in self.processes.items() if r == role and p.is_living]


def _meets_others(process: Process) -> bool:
    """A server has neither steps nor process groups: nobody of its role waits for it."""
    return process.step is not None or bool(process.groups)


def _trains(process: Process) -> bool:
    return process.counters.get("optimizer_steps", 0.0) > 0
