"""Combines what the nodes of one job report, on the clocks of the local host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from statistics import median

from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.facts.bounds import MAX_ROLES
from dfx_agent.facts.layout import Layout, merged
from dfx_agent.facts.ledger import LedgerNews, Progress
from dfx_agent.facts.memory import MemoryFacts
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import Reported, RunFacts
from dfx_agent.facts.scalars import ReportedScalars, UpdateCounts
from dfx_agent.facts.seat import LOG_ROLE, ProcessId, Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.hub.clocks import NodeClock, Shift
from dfx_agent.hub.node_facts import NodeRun
from dfx_agent.hub.rank_labels import RankOwners
from dfx_agent.job.judging import Evidence, JobJudge
from dfx_agent.job.rendezvous import Launched
from dfx_agent.job.roster import SILENT_SECONDS, Reach
from dfx_agent.job.steps import JobSteps
from dfx_agent.job.time_series import JobTimeSeries
from dfx_agent.snapshot import EngineFacts
from dfx_agent.snapshot.faults import Faults

_Reached = dict[str, dict[str, int | None]]  # by role and label

# a document takes a while to arrive, so the order of two deaths on two nodes is this uncertain
_ORDER_NS = 500 * 10**6
_LATEST_STAGES = 16
# nodes report in turn, so ranks on two nodes may be this many steps apart when values arrive
_RECENT_STEPS = 32
_STANDS_AFTER_NS = 10 * 10**9


class JobFold:
    """The state of one job. Pass every report of a node to ``take``.

    ``now_ns`` is the time of the oldest latest report of all connected nodes. Judges compare all
    ranks at that time, so a node that reported earlier is not blamed for being behind.
    """

    def __init__(
        self,
        name: str,
        run: str = "",
        critical: Condition = DIVERGENCE.condition,
        faults: Faults | None = None,
        num_recent_steps: int = _RECENT_STEPS,
    ) -> None:
        """``name``: the name that the nodes use. ``run``: a unique name, if two jobs share one.

        ``num_recent_steps``: how many steps two ranks may be apart when their values arrive.
        """
        self.name = name
        self.run = run or name
        self.judge = JobJudge(self.run, faults or Faults(), critical)
        self.nodes: dict[str, NodeRun] = {}
        self.owners = RankOwners()
        self.steps: dict[str, JobSteps] = {}
        self.time_series = JobTimeSeries(num_recent_steps)
        self.reach: dict[str, Reach] = {}
        self.idle_nodes: frozenset[str] = frozenset()
        self.launched: tuple[Launched, ...] = ()
        self.here_ns, self.here_seconds = 0, 0.0
        self._shifts: dict[str, Shift] = {}  # by node, at ``here_ns``
        self._latest_ns: dict[tuple[str, ProcessId, str], int] = {}
        self._layouts: dict[str, tuple[object, Layout]] = {}  # role -> (inputs, merged layout)

    def take(
        self, node: str, facts: RunFacts, clock: NodeClock, here_ns: int, here_seconds: float
    ) -> bool:
        """Add one report of a node. False: reports are missing, the node must send all again.

        Raises: ValueError with a one-line message if the job has too many roles or processes.
        """
        roles = {steps.role for steps in facts.steps}
        if len(roles | self.steps.keys()) > MAX_ROLES:
            raise ValueError(f"more than {MAX_ROLES} roles in one job")
        self.at(here_ns, here_seconds)
        node_run = self.nodes.get(node) or NodeRun(node, clock, facts)
        self.update(node_run, facts)
        return not node_run.is_behind

    def update(self, node: NodeRun, facts: RunFacts) -> None:
        """Add a report of this node at the current time."""
        self.nodes[node.node] = node
        before = {(seat.role, seat.label): seat for seat in node.seats}
        may_grow = node.take(facts, self.here_ns)
        for role in self.owners.take(node.node, node.seats, self.is_connected):
            self._steps_of(role).restart()
        if may_grow:
            self._grow(node)
        for place in before.keys() - {(seat.role, seat.label) for seat in node.seats}:
            self._remove(self.owners.process(node.node, before[place].id))

    def _remove(self, process: ProcessId) -> None:
        """Drop a process that ended long ago and has no successor."""
        self.judge.ledger.remove_process(process, ())
        self.time_series.remove_process(process)
        if process.role in self.steps:
            self.steps[process.role].remove(process.label)

    def at(self, here_ns: int, here_seconds: float) -> None:
        """Set the current monotonic and Unix time of the local host."""
        self.here_ns, self.here_seconds = here_ns, here_seconds
        self._shifts.clear()

    def remove_node(self, node: str) -> None:
        """Remove a node that has no process of this job any more."""
        self.owners.take(node, (), self.is_connected)
        del self.nodes[node]

    @property
    def framework(self) -> str:
        return next((n.facts.framework for n in self.nodes.values() if n.facts.framework), "")

    @property
    def now_ns(self) -> int:
        return min((node.as_of_ns for node in self.connected), default=self.here_ns)

    @property
    def late_seconds(self) -> float:
        """Seconds between ``now_ns`` and the current time of the local host."""
        return (self.here_ns - self.now_ns) / 1e9

    @property
    def quiet_seconds(self) -> float:
        """Seconds since a process on a connected node last made progress."""
        return min((node.facts.quiet_seconds for node in self.connected), default=0.0)

    @property
    def connected(self) -> list[NodeRun]:
        return [node for node in self.nodes.values() if self.is_connected(node.node)]

    def is_connected(self, node: str) -> bool:
        node_run = self.nodes.get(node)
        is_silent = node_run is None or node_run.silent_seconds(self.here_ns) >= SILENT_SECONDS
        return node_run is not None and not is_silent and not node_run.has_left

    def seats(self, *, of_connected: bool = True) -> Iterator[tuple[NodeRun, Seat]]:
        """Processes with their labels in the job, without dead processes that have a successor."""
        for node in self.connected if of_connected else self.nodes.values():
            for seat in node.seats:
                label = self.owners.label(node.node, seat.role, seat.label)
                if label == seat.label:
                    yield node, seat
                elif seat.is_living:
                    yield node, replace(seat, label=label)

    def ranks(self) -> dict[str, list[RankFacts] | None]:
        """Role -> its ranks on connected nodes at ``now_ns``, sorted by rank.

        The list also contains ended ranks of nodes whose agent has shut down. It is empty if all
        ranks of the role make progress. The value is None if a node cannot read the ranks.
        """
        found: dict[str, list[RankFacts]] = {}
        now_ns = self.now_ns
        reported = [
            (node, _reported_ranks(node))
            for node in self.nodes.values()
            if self._has_known_ranks(node)
        ]
        standing = _standing(ranks for _, ranks in reported)
        for node, ranks in reported:
            shift, name = self.shift(node), node.node if len(self.nodes) > 1 else ""
            for (role, label), rank in ranks.items():
                if role == LOG_ROLE:
                    continue
                ranks_of_role = found.setdefault(role, [])
                job_label = self.owners.label(node.node, role, label)
                if role in standing and (job_label == label or rank.is_living):
                    local_rank = node.rank_on_local_clocks((role, label), shift)
                    ranks_of_role.append(self._as_of(local_rank, now_ns, job_label, name))
        ranks_by_role = {role: _of_latest_attempt(_outlived(r)) for role, r in found.items()}
        return {**ranks_by_role, **dict.fromkeys(self._unread_roles())}

    def _unread_roles(self) -> list[str]:
        return [
            seat.role
            for node, seat in self.seats()
            if seat.is_judged and seat.role not in node.facts.ranks
        ]

    def _has_known_ranks(self, node: NodeRun) -> bool:
        return node.has_left or self.is_connected(node.node)

    def counts_steps(self) -> tuple[set[str], set[str]]:
        """(Roles with a rank that is in a step, roles with a rank that is in a process group)."""
        ranks = [item for node in self.connected for item in node.ranks.items()]
        return (
            {role for (role, _), rank in ranks if rank.step is not None},
            {role for (role, _), rank in ranks if rank.has_groups},
        )

    def stage_seconds(self, names: Collection[str]) -> dict[tuple[str, str], dict[str, float]]:
        """(role, rank) -> stage -> seconds: the median of the latest 16 passes of that stage."""
        return {
            (role, self.owners.label(node.node, role, label)): {
                name: median(rank.stage_durations[name][-_LATEST_STAGES:]) / 1e9
                for name in names
                if rank.stage_durations.get(name)
            }
            for node in self.connected
            for (role, label), rank in node.ranks.items()
            if not rank.stage_durations.keys().isdisjoint(names)
        }

    def role_steps(self, role: str) -> RoleSteps:
        """Completed steps of a role, with what its connected nodes report about the role."""
        reported = [t for node in self.connected for t in node.facts.steps if t.role == role]
        ratios = [t.coverage_ratio for t in reported if t.coverage_ratio is not None]
        steps = self.steps.get(role)
        return RoleSteps(
            role,
            tuple(steps.steps) if steps else (),
            min(ratios, default=None),
            sum(t.num_ranks for t in reported),
            max((t.world_size for t in reported), default=-1),
            self.layout(role),
            {rank: state for t in reported for rank, state in t.devices.items()},
        )

    def evidence(self) -> Evidence:
        """The input of the judges at the current time."""
        roles = {role for node in self.connected for role, _ in node.ranks if role != LOG_ROLE}
        roles |= {*self._unread_roles()}
        seats = [seat for _, seat in self.seats() if seat.is_judged]
        living = {seat.role for _, seat in self.seats() if seat.is_living}
        stepping, grouped = self.counts_steps()
        return Evidence(
            now_seconds=self.here_seconds,
            step_clock_seconds=max(map(self._clock_of_steps, self.connected), default=0.0),
            seats=seats,
            steps={role: partial(self.role_steps, role) for role in sorted(roles)},
            spans={
                role: spans
                for role, steps in self.steps.items()
                if role in living and (spans := steps.spans())
            },
            stepping=stepping,
            grouped=grouped,
            memory=self.memory,
            reported=self.reported(),
            checkpoints={step for steps in self.steps.values() for step in steps.checkpoints},
        )

    def _clock_of_steps(self, node: NodeRun) -> float:
        """Current Unix time by the clock that the processes of this node read when they began."""
        facts, shift = node.facts, self.shift(node)
        return facts.now_seconds + shift.seconds + (self.here_ns - node.as_of_ns) / 1e9

    def layout(self, role: str) -> Layout:
        """The layout merged from all connected nodes; merged again when a node reports a change."""
        layouts = [
            (node.node, node.layouts[role]) for node in self.connected if role in node.layouts
        ]
        key = self.owners.num_changes, layouts
        if role not in self._layouts or self._layouts[role][0] != key:
            merged_layout = merged(
                (node, layout, partial(self.owners.label, node, role)) for node, layout in layouts
            )
            self._layouts[role] = key, merged_layout
        return self._layouts[role][1]

    def close(self) -> None:
        """Close complete steps, then judge the values and batches that are complete."""
        seats = [seat for _, seat in self.seats()]
        if any(steps.has_open_steps for steps in self.steps.values()):
            living, ended = self._reached()
            for role, steps in self.steps.items():
                steps.close(living.get(role, {}), ended.get(role, {}))
        self.judge.close(
            self._reported_steps(), self.updates(), self._progress(), is_whole=self.is_whole(seats)
        )

    def _steps_of(self, role: str) -> JobSteps:
        if role not in self.steps:
            self.steps[role] = JobSteps(role)
        return self.steps[role]

    def _reached(self) -> tuple[_Reached, _Reached]:
        """Current step by role and rank: (of living processes, of ended processes)."""
        living: _Reached = {}
        ended: _Reached = {}
        for node, seat in self.seats():
            rank = node.ranks.get((seat.role, self.owners.own_label(node.node, seat.label)))
            found = living if seat.is_living else ended
            found.setdefault(seat.role, {})[seat.label] = None if rank is None else rank.step
        return living, ended

    def _reported_steps(self) -> dict[ProcessId, int | None]:
        """Living process -> the step number that the process itself reports."""
        step_by_process = {}
        for node, seat in self.seats():
            if seat.is_living:
                own = self.owners.own_label(node.node, seat.label)
                rank = node.ranks.get((seat.role, own))
                step_by_process[seat.id] = None if rank is None else rank.reported_step
        return step_by_process

    def memory(self) -> tuple[MemoryFacts, ...]:
        return tuple(
            replace(facts, process=self.owners.process(node.node, facts.process))
            for node in self.connected
            for facts in node.memory_facts().values()
        )

    def reported(self) -> list[Reported]:
        """Events that devices of connected nodes report."""
        return [
            self.shift(node).reported(event)
            for node in self.connected
            for event in node.facts.reported
        ]

    def engines(self) -> list[EngineFacts]:
        """The rollout engines of connected nodes; of several nodes, "replica@node"."""
        nodes = [node for node in self.connected if node.engines]
        nodes_by_pid = self._nodes_by_pid() if nodes else {}
        return [
            replace(
                self.shift(node).engine(engine),
                replica=engine.replica if len(nodes) == 1 else f"{engine.replica}@{node.node}",
                # judges join engine and rank by pid, which a rank of another node may have too
                pid=None if nodes_by_pid.get(engine.pid, set()) - {node.node} else engine.pid,
            )
            for node in nodes
            for engine in node.engines
        ]

    def _nodes_by_pid(self) -> dict[int | None, set[str]]:
        nodes_by_pid: dict[int | None, set[str]] = {}
        for node in self.connected:
            for seat in node.seats:
                nodes_by_pid.setdefault(seat.pid, set()).add(node.node)
        return nodes_by_pid

    def updates(self) -> list[UpdateCounts]:
        return [
            self.shift(node)
            .updates(counts)
            ._replace(process=self.owners.process(node.node, counts.process))
            for node in self.connected
            for counts in node.facts.updates
        ]

    def is_whole(self, seats: Iterable[Seat]) -> bool:
        """Whether the nodes report every rank of every role."""
        all_seats = list(seats)
        num = {role: sum(s.role == role for s in all_seats) for role in {s.role for s in all_seats}}
        return all(seat.world_size <= num[seat.role] for seat in all_seats)

    def _grow(self, node_run: NodeRun) -> None:
        node, facts, shift = node_run.node, node_run.facts, self.shift(node_run)
        for reported in facts.steps:
            steps = self._steps_of(reported.role)
            label = partial(self.owners.label, node, reported.role)
            for step in reported.steps:
                steps.add(node, step, shift, label)
        guard = self.judge.faults.guard
        fresh = [
            self._fresh_scalars(node, reported, is_full=facts.is_full) for reported in facts.scalars
        ]
        scalars_by_attempt = [
            (shift.scalars(reported), node_run.attempt(old.process))
            for reported, old in zip(fresh, facts.scalars, strict=True)
            if reported.scalars
        ]
        with guard("judgement", self.run, "reported numbers"):
            for scalars, _ in scalars_by_attempt:
                self.judge.health.add(scalars)
        with guard("judgement", self.run, "scalars"):
            self.time_series.add(scalars_by_attempt)
        with guard("judgement", self.run, "reported batches"):
            for news in facts.batches:
                if self._is_fresh(node, news) or not facts.is_full:
                    process = self.owners.process(node, news.process)
                    self.judge.ledger.add(replace(news, process=process))

    def _fresh_scalars(
        self, node: str, reported: ReportedScalars, *, is_full: bool
    ) -> ReportedScalars:
        """The values that no earlier document contained."""
        key = node, reported.process, "scalars"
        before_ns = self._latest_ns.get(key, -1) if is_full else -1
        fresh = tuple(scalar for scalar in reported.scalars if scalar.time_ns > before_ns)
        self._latest_ns[key] = max((scalar.time_ns for scalar in fresh), default=before_ns)
        process = self.owners.process(node, reported.process)
        return replace(reported, process=process, scalars=fresh)

    def _is_fresh(self, node: str, news: LedgerNews) -> bool:
        """Whether no earlier document contained these batches; True if there are none."""
        key = node, news.process, "batches"
        latest_ns = max((crossing.time_ns for crossing in news.completed), default=None)
        if latest_ns is None:
            return True
        is_fresh = latest_ns > self._latest_ns.get(key, -1)
        self._latest_ns[key] = max(latest_ns, self._latest_ns.get(key, -1))
        return is_fresh

    def _progress(self) -> list[Progress]:
        return [
            progress._replace(process=self.owners.process(node.node, progress.process))
            for node in self.nodes.values()
            for progress in node.facts.progress
        ]

    def shift(self, node: NodeRun) -> Shift:
        """The shift from the clocks of this node to the clocks of the local host."""
        shift = self._shifts.get(node.node)
        if shift is None:
            shift = self._shifts[node.node] = node.shift(self.here_seconds, self.here_ns)
        return shift

    def _as_of(self, rank: RankFacts, now_ns: int, label: str, node: str) -> RankFacts:
        """The rank at ``now_ns`` under its label in the job; dates later progress ``now_ns``."""
        if (rank.label, rank.node, rank.now_ns) == (label, node, now_ns):
            return rank
        return replace(
            rank,
            label=label,
            node=node,
            now_ns=now_ns,
            now_seconds=self.here_seconds - (self.here_ns - now_ns) / 1e9,
            moved_ns=min(rank.moved_ns, now_ns),
            others_moved_ns=min(rank.others_moved_ns, now_ns),
        )


def _reported_ranks(node: NodeRun) -> Mapping[tuple[str, str], RankFacts]:
    """Ranks with a known state: if the agent has shut down, only ranks that had ended."""
    if not node.has_left:
        return node.ranks
    return {key: rank for key, rank in node.ranks.items() if not rank.is_living}


def _standing(ranks_by_node: Iterable[Mapping[tuple[str, str], RankFacts]]) -> set[str]:
    """Roles with a rank that may be blocked."""
    return {role for ranks in ranks_by_node for (role, _), rank in ranks.items() if may_stand(rank)}


def may_stand(rank: RankFacts) -> bool:
    """Whether a judge must check the rank: it has ended, or was idle or waiting for 10 s."""
    before_ns = rank.now_ns - _STANDS_AFTER_NS
    if not rank.is_living or rank.moved_ns <= before_ns:
        return True
    if rank.asks_since_ns is not None and rank.asks_since_ns <= before_ns:
        return True
    return any(arrival.begin_ns <= before_ns for arrival in rank.arrivals)


def _of_latest_attempt(ranks: list[RankFacts]) -> list[RankFacts]:
    """Living ranks and ranks of the latest attempt, sorted; without ended older ranks."""
    attempt = max((rank.attempt for rank in ranks), default=0)
    current = [rank for rank in ranks if rank.is_living or rank.attempt == attempt]
    return sorted(current, key=lambda rank: (len(rank.label), rank.label))


def _outlived(ranks: list[RankFacts]) -> list[RankFacts]:
    """Add to ended ranks what one node cannot see: whether ranks on another node outlived them."""
    if len({rank.node for rank in ranks}) <= 1:
        return ranks
    living = {rank.node for rank in ranks if rank.is_living}
    return [rank if rank.gone_ns is None else _ended(rank, living) for rank in ranks]


def _ended(rank: RankFacts, living: set[str]) -> RankFacts:
    """An ended rank of several nodes. ``living``: nodes that have a living rank."""
    elsewhere = bool(living - {rank.node})
    is_outlived = rank.is_outlived or (elsewhere and (rank.gone_ns or 0) <= rank.now_ns)
    alive_ns = None if rank.alive_ns is None else rank.alive_ns - _ORDER_NS
    return replace(rank, is_outlived=is_outlived, alive_ns=alive_ns)
