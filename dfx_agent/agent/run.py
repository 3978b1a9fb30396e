"""Processes folded into a run: who is which rank, what they brought, what is concluded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from dfx_agent.agent.config_flops import ConfigFlops
from dfx_agent.agent.peak_flops import Peaks
from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.catalogue.native.time_series import ScalarStore
from dfx_agent.facts.devices import Reported
from dfx_agent.facts.scalars import ScalarRecord, ToldScalars
from dfx_agent.facts.seat import LOG_ROLE, Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.hub.clocks import OWN_CLOCKS
from dfx_agent.hub.sending import Teller
from dfx_agent.job.evidence import Evidence
from dfx_agent.job.job import NUM_STEPS, Job
from dfx_agent.job.judged_scalars import sent_scalars
from dfx_agent.job.judging import STEPS, WAITS, JobJudge
from dfx_agent.job.node_view import NodeView
from dfx_agent.job.rank_places import Places, RankPlaces
from dfx_agent.job.steps import JobSteps, latest_rows
from dfx_agent.node.collectives.matching import Collectives
from dfx_agent.node.collectives.step_groups import StepGroups
from dfx_agent.node.crossings import Crossings
from dfx_agent.node.ended import DroppedProcesses, surplus
from dfx_agent.node.engines.discovery import SERVING_ROLES
from dfx_agent.node.engines.pool import IdleCheck
from dfx_agent.node.memory_facts import MemoryReader
from dfx_agent.node.passive import OutsideProcess, verdicts
from dfx_agent.node.process import ClosedStep, Process
from dfx_agent.node.scalars.rows import ScalarRows
from dfx_agent.node.steps import StepWatch
from dfx_agent.node.tracks import Tracks
from dfx_agent.node.updates import update_counts
from dfx_agent.snapshot import RunVerdicts, StepRow, Verdict
from dfx_agent.snapshot.faults import Faults


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
        self.judge = JobJudge(run, self.faults, critical)
        self.job = Job(self.judge)
        self.tracks, self.memory = Tracks(self.faults, run), MemoryReader()
        self.crossings = Crossings()
        self.concluded: RunVerdicts | None = None  # when it was last rendered
        self.idle_check = IdleCheck()
        self._steps: dict[str, JobSteps] = {}  # by role
        self.scalar_rows = ScalarRows()
        self._watches: dict[str, StepWatch] = {}
        self._places: dict[str, RankPlaces] = {}
        self._groups: dict[Process, StepGroups] = {}
        self.teller: Teller | None = None  # what a hub is told, where there is one

    def newest_rows(self, num_steps: int = NUM_STEPS) -> tuple[StepRow, ...]:
        """Closed steps by begin, the newest ``num_steps`` of every role."""
        return latest_rows(self._steps.values(), num_steps)

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

    def roles_by_pid(self) -> dict[int, str]:
        """Of the processes that live; safe in any thread."""
        living = {p.pid: role for (role, _), p in list(self.processes.items()) if p.is_living}
        return living | {outside.pid: outside.identity.role for outside in self.outside}

    def serving_ranks_by_pid(self) -> dict[int, int]:
        """Of the living processes that serve rollouts; safe in any thread."""
        return {
            p.pid: p.follower.identity.rank
            for (role, _), p in list(self.processes.items())
            if role in SERVING_ROLES and p.is_living and p.follower.identity.rank >= 0
        }

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
        self.judge.ledger.let_go(process.id, self.crossings.let_go(process))
        self.scalar_rows.let_go(role, label)
        if all(other != label for _, other in self.processes):
            self.store.let_go(label)
        self._groups.pop(process, None)
        if role in self._watches:
            self._watches[role].let_go(process)
        if role in self._steps:
            self._steps[role].remove(label)

    def add(self, process: Process, scalars: list[ScalarRecord], steps: list[ClosedStep]) -> None:
        """What one reading of a process brought."""
        self._fresh += ((scalar, process.label, process.attempt) for scalar in scalars)
        if scalars:  # a run without a framework is asked in all its processes
            framework, offset_ns = self.framework_of(process), process.follower.epoch_offset_ns
            told = ToldScalars(process.id, framework, tuple(scalars), offset_ns)
            self.judge.health.add(told)
            sent = sent_scalars(told) if self.teller is not None else None
            if self.teller is not None and sent is not None:
                self.teller.add_scalars(sent)
        self.collectives.add(process)
        crossed = self.crossings.news(process)
        if crossed is not None:
            self.judge.ledger.add(crossed)
        if self.teller is not None:
            self._groups.setdefault(process, StepGroups()).add(process, steps)
            if crossed is not None:
                self.teller.add_batches(crossed)
        role = process.filed_as.role
        self._follow_role(role)
        if not self._watches[role].add(process, steps):
            self._steps[role].begin_anew()

    def _follow_role(self, role: str) -> None:
        if role not in self._watches:
            self._watches[role], self._steps[role] = StepWatch(), JobSteps(role)

    def close_steps(self, begin_ns: int) -> None:
        """All processes were read since ``begin_ns``: close steps that are over, and judge."""
        guard, run = self.faults.guard, self.run
        with guard("judgement", run, "scalars"):
            self._store_scalars()
        with guard("judgement", run, STEPS):
            self.collectives.settle()
            for role, watch in self._watches.items():
                self._close_steps(role, watch)
        with guard("judgement", run, WAITS):
            read_seconds = time.monotonic()
            self.tracks.observe(self._trained(), begin_ns)
            facts, quiet_seconds = self.tracks.facts(begin_ns), self.tracks.quiet_seconds(begin_ns)
            self.judge.judge_waits(facts, quiet_seconds, read_seconds)
        processes = self.processes.values()
        told = {p.id: p.told_step for p in processes if p.is_living}
        reporting = self.crossings.progress(processes)
        self.judge.close(told, update_counts(processes), reporting, is_whole=self._is_whole())

    def _close_steps(self, role: str, watch: StepWatch) -> None:
        ranks = [process for (r, _), process in self.processes.items() if r == role]
        living = [process for process in ranks if process.is_living]
        closed = watch.close(living, self.collectives)
        if self.teller is not None:
            self.teller.add_steps(role, closed)
        steps = self._steps[role]
        for step in closed:
            steps.add("", step, OWN_CLOCKS, str)
        ended = {process.label: process.step for process in ranks if not process.is_living}
        steps.close({process.label: process.step for process in living}, ended)

    def _store_scalars(self) -> None:
        """In the order of events: one reading may bring many steps of one rank after another's."""
        fresh, self._fresh = self._fresh, []
        for scalar, label, attempt in sorted(fresh, key=lambda each: each[0].time_ns):
            self.store.add(scalar.key, label, attempt, scalar.step, scalar.value)

    def verdicts(self) -> tuple[Verdict, ...]:
        """What is concluded now of the processes of this node."""
        seats = [process.seat for process in self._trained().values()]
        return self.judge.verdicts(self._evidence(seats), NodeView(seats, verdicts(self.outside)))

    def _evidence(self, seats: Sequence[Seat]) -> Evidence:
        ranks: dict[str, list[Process]] = {}
        for (role, _), process in self.processes.items():
            if role != LOG_ROLE and not process.follower.is_told_late:
                ranks.setdefault(role, []).append(process)
        everybody = [process for of_role in ranks.values() for process in of_role]
        living = [process for process in self.processes.values() if process.is_living]
        now_ns = time.monotonic_ns()
        return Evidence(
            now_seconds=time.time(),
            step_clock_seconds=max((p.follower.epoch_seconds(now_ns) for p in living), default=0.0),
            seats=seats,
            steps={
                role: partial(self.role_steps, role, ranks[role])
                for role in self._watches
                if role in ranks
            },
            spans={
                role: self._steps[role].spans()
                for role in {process.filed_as.role for process in living} & self._steps.keys()
            },
            stepping={p.filed_as.role for p in everybody if p.step is not None},
            grouped={p.filed_as.role for p in everybody if p.groups},
            memory=lambda: self.memory.facts(self._trained().values()),
            reported=self.reported,
            checkpoints={step for steps in self._steps.values() for step in steps.checkpoints},
        )

    def part(self) -> str:
        """What part of its job is seen here, in words; "" for all of it."""
        return NodeView([process.seat for process in self._trained().values()]).part

    def _trained(self) -> dict[tuple[str, str], Process]:
        return {
            key: p
            for key, p in self.processes.items()
            if key[0] != LOG_ROLE and not p.follower.is_told_late and p.state != "detached"
        }

    def _is_whole(self) -> bool:
        """Whether every rank of every role is followed by this agent."""
        roles = Counter(role for role, _ in self.processes)
        return all(
            p.follower.identity.world_size <= roles[role] for (role, _), p in self.processes.items()
        )

    def told(self) -> Teller:
        """From now on what a hub is to know is kept for it."""
        if self.teller is None:
            self.teller = Teller()
        return self.teller

    def role_steps(self, role: str, ranks: Collection[Process]) -> RoleSteps:
        """What is closed by now of these ranks of a role, at least one."""
        self._follow_role(role)
        facts = self._watches[role].facts(role, ranks, self.collectives)
        return replace(facts, steps=tuple(self._steps[role].steps))

    def places(self) -> dict[str, Places]:
        """Role -> where its ranks stand in the layout of the job, as they told it."""
        found: dict[str, Places] = {}
        for role, watch in self._watches.items():
            ranks = [p for (r, _), p in self.processes.items() if r == role]
            labels = [process.label for process in ranks]
            known = self._places.setdefault(role, RankPlaces())
            found[role] = known.of([watch.layout(ranks)], labels, partial(watch.layout, ranks))
        return found
