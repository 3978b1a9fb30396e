"""All jobs of a hub. Assigns each document to its job and evaluates every job."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dfx_agent import __version__
from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.seat import LOG_ROLE, Seat
from dfx_agent.hub.clocks import NodeClock
from dfx_agent.hub.reporting_nodes import ReceivedFacts, ReportingNodes
from dfx_agent.job.fold import JobFold
from dfx_agent.job.hub_view import HubJob
from dfx_agent.job.job import NUM_STEPS
from dfx_agent.job.judging import JobJudge
from dfx_agent.job.rendezvous import Launched, is_other_job, rendezvous_of
from dfx_agent.job.roster import SILENT_SECONDS, Reach
from dfx_agent.snapshot import (
    AgentRow,
    AlertRow,
    RunRow,
    ScalarHistory,
    SignalHistory,
    SignalState,
    Snapshot,
    StepRow,
)
from dfx_agent.snapshot.faults import Faults

_LOOK_EVERY_NS = 500 * 10**6
_NUM_COSTS = 8  # evaluations whose mean duration counts
_COSTS_APART = 12  # an evaluation of many ranks is slow: use at most 1/12 of the time
_MOST_APART_NS = 15 * 10**9  # the longest time between two evaluations
_FORGET_SECONDS = 3600.0

MAX_JOBS = 256


class Seated(NamedTuple):
    """A rank of a job and its address: ask ``node`` for rank ``label`` of ``run``.

    Add ``apart_seconds`` to Unix times of that node to get Unix times of the local host.
    """

    rank: tuple[str, str]  # role, and how the job calls it
    node: str
    run: str
    label: str
    apart_seconds: float


class JobFolds:
    """All reports that a hub has received, by job. Thread-safe.

    Two jobs with the same name are separate jobs if their rendezvous addresses differ.
    """

    def __init__(self, critical: Condition = DIVERGENCE.condition) -> None:
        self.nodes = ReportingNodes()
        self._critical = critical
        self._faults = Faults()
        self._launched: dict[str, Launched] = {}  # by node
        self._assigned: dict[tuple[str, str], HubJob] = {}  # by node, and by the name of a run
        self._jobs: list[HubJob] = []
        self._lock = threading.Lock()
        self._awaits_alerts = False
        self._begin_seconds = time.time()
        self._due_ns = 0
        # the mean counts: one slow evaluation, which closes a step, must not delay the next one
        self._costs_ns: deque[int] = deque(maxlen=_NUM_COSTS)
        self._snapshot: Snapshot | None = None

    def receive(
        self,
        document: bytes,
        node: str = "",
        now_ns: int | None = None,
        now_seconds: float | None = None,
    ) -> bool:
        """Add one document of a node. False: documents are missing, the node must send all again.

        ``node`` is the sender; the problem list shows it if the document cannot be read. ``now_ns``
        and ``now_seconds`` are times of the local host and default to the current time.

        Raises: ValueError with a one-line message if the document is refused.
        """
        here_ns = time.monotonic_ns() if now_ns is None else now_ns
        here_seconds = time.time() if now_seconds is None else now_seconds
        with self._lock, self.nodes.receiving(document, node, here_ns) as received:
            return self._take(received, here_ns, here_seconds)

    def called(self, node: str, run: str) -> str:
        """The unique name of the job that contains this run of a node."""
        with self._lock:
            job = self._assigned.get((node, run))
            return run if job is None else job.fold.run

    def probed(self, node: str, reach: Reach | None) -> None:
        """Set whether the host of a node answers a probe; None removes an earlier result."""
        with self._lock:
            for job in self._jobs:
                if reach is None:
                    job.fold.reach.pop(node, None)
                elif node in job.fold.nodes:
                    job.fold.reach[node] = reach

    def silent_nodes(self, now_ns: int | None = None) -> frozenset[str]:
        """Nodes of a job without a report for 15 s whose agent did not announce its shutdown."""
        here_ns = time.monotonic_ns() if now_ns is None else now_ns
        with self._lock:
            return frozenset(
                node_run.node
                for job in self._jobs
                for node_run in job.fold.nodes.values()
                if node_run.silent_seconds(here_ns) >= SILENT_SECONDS and not node_run.has_left
            )

    def snapshot(self, now_ns: int | None = None, now_seconds: float | None = None) -> Snapshot:
        """The latest snapshot of all jobs. Evaluates them again if it is older than 0.5 s.

        With thousands of ranks the interval grows to 15 s, so that evaluations use about a twelfth
        of the time.
        """
        here_ns = time.monotonic_ns() if now_ns is None else now_ns
        here_seconds = time.time() if now_seconds is None else now_seconds
        with self._lock:
            if self._snapshot is None or now_ns is not None or here_ns >= self._due_ns:
                begin_ns = time.thread_time_ns()
                self._snapshot = self._look(here_ns, here_seconds)
                self._costs_ns.append(time.thread_time_ns() - begin_ns)
                usual_ns = sum(self._costs_ns) // len(self._costs_ns)
                apart_ns = max(_LOOK_EVERY_NS, usual_ns * _COSTS_APART)
                self._due_ns = here_ns + min(apart_ns, _MOST_APART_NS)
            return self._snapshot

    def scalar_history(self, run: str, keys: Sequence[str]) -> Iterable[ScalarHistory]:
        """Histories of reported values; of all if ``keys`` is empty. KeyError: unknown run."""
        with self._lock:
            fold = self._job(run).fold
            return fold.time_series.histories(fold.framework, keys)

    def seated(self, run: str) -> tuple[Seated, ...]:
        """The ranks of a job with the node to ask about each rank. KeyError: unknown run."""
        with self._lock:
            fold = self._job(run).fold
            return tuple(
                Seated(
                    (seat.role, seat.label),
                    node.node,
                    fold.name,
                    fold.owners.own_label(node.node, seat.label),
                    fold.shift(node).seconds,
                )
                for node, seat in fold.seats(of_connected=False)
                if seat.role != LOG_ROLE
            )

    def signal_history(self, run: str, num_steps: int) -> SignalHistory:
        with self._lock:
            return self._job(run).judge.signal_history(num_steps)

    def closed_steps(self, run: str, after_step: int | None) -> tuple[StepRow, ...]:
        """Stored closed steps of every role, sorted by begin. KeyError: unknown run."""
        with self._lock:
            rows = self._job(run).rows.latest_steps(NUM_STEPS)
        return tuple(row for row in rows if after_step is None or row.step > after_step)

    def step_scalars(
        self, run: str, after_step: int | None, since_seconds: float | None = None
    ) -> Mapping[int, Mapping[str, float]]:
        """Step -> native key -> mean over ranks; see JobTimeSeries. KeyError: unknown run."""
        with self._lock:
            return self._job(run).fold.time_series.after(after_step, since_seconds)

    def first_scalar_step(self, run: str) -> int:
        """The earliest step that any of its histories begins with; 0 without one."""
        with self._lock:
            return self._job(run).fold.time_series.first_step

    def signal_states(self) -> dict[str, SignalState | None]:
        """Job -> training health at its latest judged step."""
        return {job.fold.run: job.judge.health.state for job in list(self._jobs)}

    def reset_signals(self, run: str) -> None:
        """Use the current state of ``run`` as the new baseline. KeyError: unknown run."""
        with self._lock:
            self._job(run).judge.health.reset()
            self._snapshot = None

    def await_alerts(self) -> None:
        """Expect calls of ``see_alerts``; a new job is not clear before the first call."""
        self._awaits_alerts = True

    def see_alerts(self, rows: Sequence[AlertRow]) -> Snapshot:
        """Set the firing alerts of all jobs. Returns a snapshot whose incidents include them.

        All jobs are evaluated again if the firing alerts have changed.
        """
        with self._lock:
            for job in self._jobs:
                firing = tuple(row for row in rows if row.run == job.fold.run)
                if firing != job.alerts:
                    job.alerts, self._snapshot = firing, None
        return self.snapshot()

    def _job(self, run: str) -> HubJob:
        found = next((job for job in self._jobs if job.fold.run == run), None)
        if found is None:
            raise KeyError(run)
        return found

    def _take(self, received: ReceivedFacts, here_ns: int, here_seconds: float) -> bool:
        facts, clock = received
        if not facts.run:
            self._take_launch(facts, clock, here_ns, here_seconds)
            return True
        launched = self._launched.get(facts.node)
        if launched is not None and launched.launch.run == facts.run:
            del self._launched[facts.node]  # the run has started
        fold = self._job_of(facts).fold
        return fold.take(facts.node, facts, clock, here_ns, here_seconds)

    def _take_launch(
        self, facts: RunFacts, clock: NodeClock, here_ns: int, here_seconds: float
    ) -> None:
        self._launched.pop(facts.node, None)
        if facts.launch is not None and not facts.is_last:
            since_ns = facts.launch.begin_ns + clock.shift_ns
            since_seconds = here_seconds - (here_ns - since_ns) / 1e9
            launched = Launched(facts.node, facts.launch, since_ns, since_seconds)
            self._launched[facts.node] = launched

    def _place_launched(self, here_ns: int) -> None:
        """Assign launchers to a job of their name without connected nodes, or to a new job."""
        old_ns = here_ns - int(SILENT_SECONDS * 1e9)
        fresh = [
            launched
            for node, launched in self._launched.items()
            if self.nodes.received_ns(node) >= old_ns
        ]
        self._launched = {launched.node: launched for launched in fresh}
        for job in self._jobs:
            job.fold.launched = ()
        for run in {launched.launch.run for launched in fresh}:
            same = [job for job in self._jobs if job.fold.name == run]
            if any(job.fold.connected for job in same):
                continue  # its ranks already report
            if not same and len(self._jobs) >= MAX_JOBS:
                continue
            job = same[-1] if same else self._begun(run, run)
            job.fold.launched = tuple(launched for launched in fresh if launched.launch.run == run)

    def _begun(self, name: str, run: str) -> HubJob:
        job = HubJob(JobFold(name, run, self._critical, self._faults))
        job.alerts = None if self._awaits_alerts else ()
        self._jobs.append(job)
        return job

    def _job_of(self, facts: RunFacts) -> HubJob:
        """The job of this node, or, if its rendezvous changed, the job with the same rendezvous."""
        key, seats = (facts.node, facts.run), facts.seats
        mine = self._assigned.get(key)
        if mine in self._jobs and not is_other_job(seats, _seats(mine, facts.node)):
            return mine
        same = [job for job in self._jobs if job.fold.name == facts.run and job is not mine]
        job = next((job for job in same if not is_other_job(seats, _seats(job))), None)
        if job is None and len(self._jobs) >= MAX_JOBS:
            raise ValueError(f"more than {MAX_JOBS} jobs report to this hub: start another one")
        if job is None:
            apart = f"{facts.run} ({rendezvous_of(seats) or facts.node})"
            is_free = mine is None and all(job.fold.run != facts.run for job in same)
            is_plain = is_free and facts.called != apart  # the previous hub used the longer name
            job = self._begun(facts.run, facts.run if is_plain else apart)
        self._assigned[key] = job
        return job

    def _look(self, here_ns: int, here_seconds: float) -> Snapshot:
        rows = []
        self._remove_silent(here_ns)
        for job in self._jobs:
            job.fold.at(here_ns, here_seconds)
        self._place_launched(here_ns)
        for job in self._jobs:
            job.fold.at(here_ns, here_seconds)
            job.fold.idle_nodes = self.nodes.idle
            with self._faults.guard("rendering", job.fold.run, "row"):
                rows.append(job.row())
        rows.sort(key=lambda row: row.begin_seconds)
        return Snapshot(here_seconds, self._agent_row(rows, here_seconds), tuple(rows))

    def _remove_silent(self, here_ns: int) -> None:
        """Remove nodes that still report, but not this run, and jobs without recent reports."""
        old_ns = here_ns - int(SILENT_SECONDS * 1e9)
        for job in self._jobs:
            for node, node_run in list(job.fold.nodes.items()):
                if node_run.received_ns < old_ns <= self.nodes.received_ns(node):
                    job.fold.remove_node(node)
        forgotten_ns = here_ns - int(_FORGET_SECONDS * 1e9)
        self._jobs = [
            job
            for job in self._jobs
            if job.fold.launched
            or any(node_run.received_ns >= forgotten_ns for node_run in job.fold.nodes.values())
        ]
        self.nodes.remove_older(idle_ns=old_ns, received_ns=forgotten_ns)
        jobs = set(map(id, self._jobs))
        self._assigned = {key: job for key, job in self._assigned.items() if id(job) in jobs}

    def _agent_row(self, runs: Sequence[RunRow], here_seconds: float) -> AgentRow:
        ranks = [rank for run in runs for rank in run.ranks]
        return AgentRow(
            version=__version__,
            pid=os.getpid(),
            node=socket.gethostname(),
            begin_seconds=self._begin_seconds,
            num_polls=self.nodes.num_documents,
            poll_elapsed_seconds=0.0,
            num_segments=sum(rank.state in ("live", "unknown") for rank in ranks),
            num_records=sum(rank.num_records for rank in ranks),
            num_lost_records=sum(rank.num_lost_records for rank in ranks),
            num_reaped_segments=0,
            num_exporter_errors=0,
            other_agent_pid=None,
            problems=tuple(self.nodes.problems()),
            detector=JobJudge.parameters,
            read_seconds=here_seconds,
            faults=self._faults.rows(""),
            num_faults=dict(self._faults.num_by_part),
        )


def _seats(job: HubJob, node: str = "") -> list[Seat]:
    """Processes of the job on one node; on all nodes if ``node`` is empty."""
    nodes = [node_run for name, node_run in job.fold.nodes.items() if node in {"", name}]
    return [seat for node_run in nodes for seat in node_run.seats]
