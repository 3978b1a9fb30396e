"""One run on this node: its processes, the facts that each reading brings, and the job of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from dfx_agent.agent.config_flops import ConfigFlops
from dfx_agent.agent.peak_flops import Peaks
from dfx_agent.agent.work_rows import work_row
from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.facts.ledger import LedgerNews
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.memory import MemoryFacts
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import Reported, RunFacts
from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.facts.seat import LOG_ROLE, ProcessId, Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.hub.sending import UnsentFacts
from dfx_agent.job.fold import JobFold
from dfx_agent.job.job import Job
from dfx_agent.job.judging import SIGNALS, STEPS, WAITS, JobJudge, sent_scalars
from dfx_agent.job.own_node import NodeView, OwnNode
from dfx_agent.node.collectives.matching import Collectives
from dfx_agent.node.collectives.step_groups import StepGroups
from dfx_agent.node.ended import DroppedProcesses, surplus
from dfx_agent.node.engines.discovery import SERVING_ROLES
from dfx_agent.node.ledger_batches import LedgerAssembler
from dfx_agent.node.measurements import ScalarRows, rank_totals, unjudged_facts, update_counts
from dfx_agent.node.memory_facts import MemoryReader
from dfx_agent.node.passive import OutsideProcess, verdicts
from dfx_agent.node.process import Process
from dfx_agent.node.steps import StepWatch
from dfx_agent.node.time.closed_step import ClosedStep
from dfx_agent.node.tracks import Tracks
from dfx_agent.snapshot import EngineFacts, RunVerdicts, Verdict
from dfx_agent.snapshot.faults import Faults

# by how many steps ranks may be apart: one reading brings all that is new of each of them
_RECENT_STEPS = 8


class LocalRun:
    """One run by name. ``add`` what is read of each process, then ``judge``."""

    def __init__(
        self,
        run: str,
        critical: Condition = DIVERGENCE.condition,
        faults: Faults | None = None,
        peak_tflops: Mapping[str, float] | None = None,
        model_configs: Mapping[str, ConfigFlops] | None = None,
        node: str = "",
    ) -> None:
        """``node``: the name under which a hub shows this node; "" without a hub."""
        self.run = run
        self.peaks, self.model_configs = Peaks(peak_tflops), model_configs or {}
        self.faults = faults or Faults()
        self.processes: dict[tuple[str, str], Process] = {}
        self.dropped = DroppedProcesses()
        self.outside: tuple[OutsideProcess, ...] = ()
        self.reported: tuple[Reported, ...] = ()  # by devices of this machine
        self.engines: tuple[EngineFacts, ...] = ()  # on this machine, at the latest reading
        self.collectives, self.ledger_batches = Collectives(), LedgerAssembler()
        self.tracks = Tracks(self.faults, run)
        self.job = Job(JobFold(run, run, critical, self.faults, _RECENT_STEPS))
        self.facts = RunFacts(run=run, node=node, now_seconds=0.0)  # of the latest reading
        self.concluded: RunVerdicts | None = None  # when it was last rendered
        self.scalar_rows = ScalarRows()
        self.unsent: UnsentFacts | None = None  # facts that wait for the hub, if there is one
        self.memory_reader = MemoryReader()
        self._has_exact_ranks = True
        self._node = OwnNode(self.facts, self.memory, self.totals_of)
        self._scalars: list[ReportedScalars] = []  # since the latest reading
        self._batches: list[LedgerNews] = []
        self._watches: dict[str, StepWatch] = {}  # by role
        self._groups: dict[Process, StepGroups] = {}

    @property
    def judge(self) -> JobJudge:
        return self.job.judge

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it lives."""
        return not self.outside and not any(p.is_living for p in self.processes.values())

    @property
    def latest_ns(self) -> int:
        """Time of the latest event on the guest's monotonic clock; 0 without processes."""
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

    def adopt(self, process: Process) -> Process | None:
        """Assign a new process to its rank; returns the dead process that it replaces."""
        identity = process.follower.identity
        pid = process.follower.preamble.pid
        process.label = str(identity.rank) if identity.rank >= 0 else f"p{pid}"
        before = self.processes.get((identity.role, process.label))
        if before is not None and before.is_alive_now() and not before.is_same_process(process):
            process.label += f".{pid}"
            before = self.processes.get((identity.role, process.label))
        process.registered_as = identity
        if before is not None:
            process.replace_process(before)
        else:
            self.dropped.restore(process)
        self.processes[identity.role, process.label] = process
        return before

    def release(self, process: Process) -> None:
        """It belongs elsewhere: take it out of this run."""
        self.processes = {key: p for key, p in self.processes.items() if p is not process}

    def remove_ended(self) -> None:
        """Release all ended processes except the latest, and add their counts to ``dropped``."""
        for process in surplus(self.processes.values()):
            self._remove(process)

    def _remove(self, process: Process) -> None:
        role, label = process.registered_as.role, process.label
        self.release(process)
        self.dropped.add(process)
        self.collectives.remove_process(process)
        given_up = self.ledger_batches.remove_process(process)
        if given_up:
            num_lost = process.follower.num_lost
            self._batches.append(LedgerNews(process.id, num_lost, given_up=given_up))
        self.scalar_rows.remove_rank(role, label)
        self._groups.pop(process, None)
        if role in self._watches:
            self._watches[role].remove_process(process)

    def add(self, process: Process, scalars: list[ScalarRecord], steps: list[ClosedStep]) -> None:
        """What one reading of a process brought."""
        if scalars:  # a run without a framework is asked in all its processes
            framework, offset_ns = self.framework_of(process), process.follower.epoch_offset_ns
            self._scalars.append(ReportedScalars(process.id, framework, tuple(scalars), offset_ns))
        self.collectives.add(process)
        crossed = self.ledger_batches.poll(process)
        if crossed is not None:
            self._batches.append(crossed)
        if self.unsent is not None:
            self._groups.setdefault(process, StepGroups()).add(process, steps)
        self._watches.setdefault(process.registered_as.role, StepWatch()).add(process, steps)

    def judge_reading(self, begin_ns: int) -> None:
        """All processes were read since ``begin_ns``: judge what that brought."""
        guard, run, is_observed = self.faults.guard, self.run, False
        with guard("judgement", run, WAITS):
            self.tracks.observe(self._judged(), begin_ns)
            is_observed = True
        self.facts = facts = self._facts_as_of(begin_ns)
        if self.unsent is not None:
            sent = filter(None, map(sent_scalars, facts.scalars))
            self.unsent.add(replace(facts, scalars=tuple(sent)))
        fold, read_seconds = self.job.fold, time.monotonic()
        fold.at(time.monotonic_ns(), time.time())
        fold.update(self._node, facts)
        fold.close()
        if is_observed:
            self.judge.judge_waits(fold.ranks(), facts.quiet_seconds, read_seconds)

    def _facts_as_of(self, now_ns: int) -> RunFacts:
        """What this reading brought: it is passed on once."""
        guard, run, processes = self.faults.guard, self.run, self.processes.values()
        scalars, self._scalars = tuple(self._scalars), []
        batches, self._batches = tuple(self._batches), []
        steps = tuple[RoleSteps, ...]()
        with guard("judgement", run, STEPS):
            self.collectives.settle()
            steps = tuple(map(self._role_steps, self._watches))
        ranks, self._has_exact_ranks = self._ranks(now_ns, is_exact=False), False
        facts = RunFacts(
            run=run, node=self.facts.node, now_seconds=self._unix_seconds(now_ns), now_ns=now_ns,
            is_full=False, framework=self.framework, steps=steps, scalars=scalars, batches=batches,
            quiet_seconds=self.tracks.quiet_seconds(now_ns),
            ranks=ranks,
            unjudged=self._unjudged(ranks, now_ns),
            seats=tuple(process.seat for process in processes),
            progress=tuple(self.ledger_batches.progress(processes)),
            reported=self.reported,
            engines=self.engines,
            attempt=max(self.dropped.attempt, *(p.attempt for p in processes), 0),
            begin_seconds=self._begin_seconds,
            dropped=self.dropped.rows(),
        )  # fmt: skip
        with guard("judgement", run, SIGNALS):
            return replace(facts, updates=tuple(update_counts(processes)))
        return facts

    def _unix_seconds(self, at_ns: int) -> float:
        """On the clock of the processes as they began: a change of the wall clock moves it not."""
        living = [p.follower for p in self.processes.values() if p.is_living]
        return max((follower.epoch_seconds(at_ns) for follower in living), default=time.time())

    @property
    def _begin_seconds(self) -> float | None:
        """When the first process began that is in no seat."""
        begins = [outside.begin_seconds for outside in self.outside]
        first = min([*begins, self.dropped.begin_seconds])
        return first if isfinite(first) else None

    def complete_facts(self) -> RunFacts:
        """``facts`` with all ranks as they are at the latest reading, to be shown or sent.

        Before the call, ranks that no judge must check may have facts of an earlier reading.
        """
        if not self._has_exact_ranks:
            self._has_exact_ranks = True
            ranks = self._ranks(self.facts.now_ns, is_exact=True)
            self.facts = replace(self.facts, ranks=ranks)
            self._node.take(self.facts, self._node.received_ns)
        return self.facts

    def _ranks(self, now_ns: int, *, is_exact: bool) -> dict[str, tuple[RankFacts, ...]]:
        logs = [p for (role, _), p in self.processes.items() if role == LOG_ROLE]
        ranks = self.tracks.facts(now_ns, is_exact=is_exact)
        return {**ranks, LOG_ROLE: tuple(map(_log, logs))} if logs else ranks

    def _unjudged(
        self, ranks: Mapping[str, Sequence[RankFacts]], now_ns: int
    ) -> dict[str, tuple[RankFacts, ...]]:
        """Facts about the processes that are shown and that no judge reads."""
        judged = {(role, rank.label) for role, of_role in ranks.items() for rank in of_role}
        by_role: dict[str, list[RankFacts]] = {}
        for (role, label), process in self.processes.items():
            if role == LOG_ROLE or (role, label) not in judged:
                by_role.setdefault(role, []).append(unjudged_facts(process, now_ns))
        return {role: tuple(found) for role, found in by_role.items()}

    def _role_steps(self, role: str) -> RoleSteps:
        """What this reading closed of one role, and how its ranks are laid out."""
        watch = self._watches[role]
        ranks = [process for (r, _), process in self.processes.items() if r == role]
        closed = watch.close([p for p in ranks if p.is_living], self.collectives)
        if not ranks:
            return RoleSteps(role, tuple(closed), None, 0, -1)
        return replace(watch.facts(role, ranks, self.collectives), steps=tuple(closed))

    def memory(self) -> tuple[MemoryFacts, ...]:
        """What its living processes hold."""
        return self.memory_reader.facts(self._judged().values())

    def totals_of(self, process: ProcessId) -> RankTotals | None:
        """Totals of one of its processes; None after it was dropped."""
        found = self.processes.get((process.role, process.label))
        if found is None:
            return None
        totals = rank_totals(found, self.collectives.group_rows(found), self.facts.now_ns)
        with self.faults.guard("rendering", self.run, f"work of rank {found.label}"):
            return replace(totals, work=work_row(found, self.peaks, self.model_configs))
        return totals

    def verdicts(self) -> tuple[Verdict, ...]:
        """What is concluded now of the processes of this node."""
        self.job.fold.at(time.monotonic_ns(), time.time())
        return self.job.verdicts(NodeView(self._seats(), verdicts(self.outside)))

    def part(self) -> str:
        """What part of its job is seen here, in words; "" for all of it."""
        return NodeView(self._seats()).part

    def _seats(self) -> list[Seat]:
        return [process.seat for process in self._judged().values()]

    def _judged(self) -> dict[tuple[str, str], Process]:
        return {key: p for key, p in self.processes.items() if p.seat.is_judged}

    def facts_to_send(self) -> UnsentFacts:
        """Facts that wait for the hub; the first call starts to collect them."""
        if self.unsent is None:
            self.unsent = UnsentFacts()
        return self.unsent


def _log(process: Process) -> RankFacts:
    """Of what follows a log, only the step that it reports."""
    return RankFacts(
        label=process.label, pid=process.pid, state=process.state,
        begin_ns=process.follower.begin_ns, reported_step=process.latest_step,
    )  # fmt: skip
