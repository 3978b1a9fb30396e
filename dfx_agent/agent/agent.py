"""The agent: one thread that reads all segments, folds them and publishes a Snapshot.

Renderers call ``snapshot``, ``scalar_history`` and ``timeline`` from their own threads. A snapshot
is rendered on request, at most once per reading: most of the time there is no request.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from dfx_agent import __version__
from dfx_agent.agent import render as view
from dfx_agent.agent.clock_watch import ClockWatch
from dfx_agent.agent.config import Config
from dfx_agent.agent.device_watch import DeviceWatch
from dfx_agent.agent.folder_room import room_problems
from dfx_agent.agent.local_run import LocalRun
from dfx_agent.agent.run_facts import RunReporter
from dfx_agent.agent.stored.baselines import HealthFiles
from dfx_agent.agent.stored.evidence import EvidenceFiles
from dfx_agent.agent.stored.incidents import IncidentsFile
from dfx_agent.agent.stored.snapshots import AllocatorSnapshots
from dfx_agent.agent.stored.totals import TotalsFile
from dfx_agent.agent.watchdog import Watchdog
from dfx_agent.base.errors import BlindError
from dfx_agent.base.text import plain
from dfx_agent.catalogue.alerts.declared import alerts_with
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.seat import Launch
from dfx_agent.hub.sending import UnsentFacts
from dfx_agent.job.job import NUM_STEPS
from dfx_agent.job.judging import JobJudge
from dfx_agent.node.devices.registry import find_readers as device_readers
from dfx_agent.node.ended import KEEP_RUNS
from dfx_agent.node.engines.watch import EngineWatch
from dfx_agent.node.passive import OutsideProcess, placed
from dfx_agent.node.process import Process
from dfx_agent.node.segments.reader import Folder
from dfx_agent.snapshot import (
    AgentRow,
    AlertRow,
    HubRow,
    MemoryHistory,
    RunRow,
    ScalarHistory,
    SegmentProblem,
    SignalHistory,
    SignalState,
    Snapshot,
    SpansRow,
    StepRow,
    TimelineRow,
)
from dfx_agent.snapshot.faults import Faults

_FORGET_RUN_SECONDS = 3600.0
_STOP_SECONDS = 10.0
# A reading wakes cold caches: while nobody looks a node is read less often. Not in the first
# seconds of a process, nor where what came in that time fills more than this of a ring.
_CALM_SECONDS = 1.0
_LOOKED_SECONDS = 0.4
_YOUNG_SECONDS = 10.0
_FULLEST_CALM_RING = 1 / 8


class Agent:
    """Follows one folder. SegmentError when the folder cannot be used."""

    def __init__(self, config: Config, *, reap: bool = True) -> None:
        self._config = config
        self._folder = Folder(config.directory, reap=reap)
        self._evidence = EvidenceFiles(config.directory)
        self._snapshots = AllocatorSnapshots(config.directory)
        self._health_files = HealthFiles(config.directory)
        self._totals_file = TotalsFile(config.directory)
        self._incidents_file = IncidentsFile(config.directory)
        self._critical = alerts_with(dict(config.thresholds), (DIVERGENCE,))[0].condition
        self._runs: dict[str, LocalRun] = {}
        self._ended: dict[str, float] = {}  # segment -> when it may be removed, monotonic
        self._num_dropped_runs = self._num_dropped_records = self._num_dropped_lost = 0
        self._faults = Faults()
        self._engines = EngineWatch(
            self._jobs, config.engines, self._faults, finds=config.find_engines, ranks=self._serving
        )
        self._watchdog = Watchdog(self._faults, max(config.poll_seconds, _CALM_SECONDS))
        self._lock = threading.Lock()
        self._stop, self._first_reading = threading.Event(), threading.Event()
        self._looked_seconds = self._polled_seconds = self._poll_elapsed = 0.0
        self._is_calm = self._is_stale = self._is_job_ended = self._awaits_alerts = False
        self._thread = threading.Thread(target=self._loop, name="dfx-agent", daemon=True)
        self._begin = time.time()
        self._num_polls = self._num_errors = 0
        self._devices = DeviceWatch(device_readers(), self._faults)
        self._reported: dict[tuple[str, str], SegmentProblem] = {}
        self._clock = ClockWatch(socket.gethostname())
        self._reporter: RunReporter | None = None
        self._hub: Callable[[], HubRow] | None = None
        self._spans: Callable[[], SpansRow] | None = None
        self._snapshot = self._render()

    @property
    def folder_uid(self) -> int:
        """Who owns the folder: whose jobs are followed."""
        return self._folder.owner_uid

    def announce(self, url: str, certificate: str = "") -> None:
        """Where verbs of this machine find us, and the certificate's path; before ``start``."""
        self._folder.announce(url, certificate)

    def start(self) -> None:
        """Start to read, and wait for the first reading, except for one that does not end."""
        self._watchdog.follow(self._thread)
        self._thread.start()
        self._first_reading.wait(self._watchdog.limit_seconds)  # before it no process is shown
        self._devices.start()
        self._engines.start()

    def stop(self) -> None:
        """Read a last time and release the folder; does not wait for a reader that hangs."""
        self._stop.set()
        self._devices.stop()
        self._engines.stop()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            return
        self._watchdog.follow(None)
        self._guarded_poll()
        if self._folder.reaps:
            for run, fold in self._runs.items():
                with self._faults.guard("keeping", run, "baselines"):
                    self._health_files.keep(run, fold.judge.health, is_last=True)
            self._render()  # stores the conclusions about the end
            self._keep(is_last=True)
        self._evidence.close()
        self._health_files.close()
        self._folder.close()

    def see_job_ended(self) -> None:
        """The job that this agent was started with has ended: read its end, and say so."""
        self._is_job_ended = True
        self._guarded_poll()

    def snapshot(self) -> Snapshot:
        """The latest snapshot, or the last one, marked as old, while the reader hangs."""
        self._looked_seconds = time.monotonic()
        if self._is_stale:
            with suppress(BlindError), self._held(), self._faults.guard("rendering"):
                if self._is_stale:
                    self._snapshot = self._render()
                    self._is_stale = False
        blind = self._watchdog.blindness()
        if blind != self._snapshot.agent.blind:
            is_old = self._watchdog.stands() is not None
            self._snapshot = view.with_blindness(self._snapshot, blind, is_old=is_old)
        return self._snapshot

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Between two readings. BlindError when the one under way does not end."""
        if not self._lock.acquire(timeout=self._watchdog.patience_seconds):
            raise BlindError("the agent's reading does not end: see /readyz")
        try:
            yield
        finally:
            self._lock.release()

    def scalar_history(self, run: str, keys: Sequence[str]) -> Iterator[ScalarHistory]:
        """Of the ``keys`` that are known, all for none; each is read when it is asked for.

        KeyError on an unknown run.
        """
        with self._held():
            fold = self._runs[run]
            stored_keys = fold.job.fold.time_series.keys()
        return (self._history(fold, key) for key in (keys or stored_keys) if key in stored_keys)

    def first_scalar_step(self, run: str) -> int:
        """The earliest step that any of its histories begins with; 0 without one."""
        with self._held():
            return self._runs[run].job.fold.time_series.first_step

    def _history(self, fold: LocalRun, key: str) -> ScalarHistory:
        with self._held():
            return fold.job.fold.time_series.history(fold.framework, key)

    def timeline(
        self, run: str, num_steps: int, ranks: Collection[tuple[str, str]] = ()
    ) -> tuple[TimelineRow, ...]:
        with self._held():
            return view.timeline_rows(self._runs[run], num_steps, ranks)

    def memory_histories(self, run: str) -> tuple[MemoryHistory, ...]:
        """Host memory of the ranks over their steps. KeyError on an unknown run."""
        with self._held():
            return view.memory_histories(self._runs[run])

    def signal_history(self, run: str, num_steps: int) -> SignalHistory:
        with self._held():
            return self._runs[run].judge.signal_history(num_steps)

    def closed_steps(self, run: str, after_step: int | None) -> tuple[StepRow, ...]:
        """Stored closed steps of every role, sorted by begin. KeyError on an unknown run."""
        with self._held():
            rows = self._runs[run].job.rows.latest_steps(NUM_STEPS)
        return tuple(row for row in rows if after_step is None or row.step > after_step)

    def step_scalars(
        self, run: str, after_step: int | None, since_seconds: float | None = None
    ) -> Mapping[int, dict[str, float]]:
        """Step -> native key -> mean over ranks; see JobTimeSeries. KeyError on an unknown run."""
        with self._held():
            return self._runs[run].job.fold.time_series.after(after_step, since_seconds)

    def report(self, run: str, part: str, message: str) -> None:
        """Count a failure outside the agent, and show it with the agent's problems."""
        with suppress(BlindError), self._held():
            self._num_errors += 1
            self._reported[run, part] = SegmentProblem(part, "exporter", message)
            self._is_stale = True

    def settle(self, run: str, part: str) -> None:
        """Clear the problem that was reported for this part."""
        with suppress(BlindError), self._held():
            self._reported.pop((run, part), None)
            self._is_stale = True

    def follow_hub(self, row: Callable[[], HubRow]) -> None:
        """Show the state of the connection to the hub from now on."""
        self._hub = row

    def follow_spans(self, row: Callable[[], SpansRow]) -> None:
        """Show from now on which spans of a job were accepted."""
        self._spans = row

    def reset_signals(self, run: str) -> None:
        """The operator says that the present state of ``run`` is normal. KeyError if unknown."""
        with self._held():
            self._runs[run].judge.health.reset()
            self._is_stale = True

    def observe_outside(self, run: str, processes: Iterable[OutsideProcess]) -> None:
        """From now on ``processes``, which have no guest, are shown as ranks of ``run``."""
        with self._held():
            self._fold(run).outside = placed(processes)
            self._is_stale = True

    def collect_facts(self, node: str, launch: Launch | None = None) -> None:
        """Collect facts for a hub, which shows this node as ``node``; call before ``start``."""
        self._reporter = RunReporter(node, launch)

    def facts(self, *, is_full: bool = False, is_last: bool = False) -> tuple[RunFacts, ...]:
        """Facts of each run since the last call, or all facts; call ``collect_facts`` first.

        Without a run, one item that reports this. ``is_last``: the agent disconnects.
        """
        if self._reporter is None:
            raise BlindError("this agent collects no facts for a hub")
        with self._held():
            return self._reporter.of_runs(self._runs.values(), is_full=is_full, is_last=is_last)

    def has_news(self) -> bool:
        """Whether ``facts`` has something that should be sent soon."""
        with self._held():
            return self._reporter is not None and self._reporter.has_news(self._runs.values())

    def await_alerts(self) -> None:
        """Another component will report firing alerts: until then no run is clear."""
        self._awaits_alerts = True

    def see_alerts(self, rows: Sequence[AlertRow]) -> Snapshot:
        """What fires now, of every run: part of the incidents of the snapshot that is returned."""
        with self._lock:
            for run, fold in self._runs.items():
                firing = tuple(row for row in rows if row.run == run)
                if firing != fold.job.alerts:
                    fold.job.alerts, self._is_stale = firing, True
        return self.snapshot()

    def _jobs(self) -> dict[str, dict[int, str]]:
        """Run -> pid -> role of what lives of it; waits for nothing."""
        return {run: fold.roles_by_pid() for run, fold in list(self._runs.items())}

    def _serving(self, run: str) -> dict[int, int]:
        """Pid -> rank of the processes that serve rollouts in ``run``; waits for nothing."""
        return fold.serving_ranks_by_pid() if (fold := self._runs.get(run)) else {}

    def signal_states(self) -> dict[str, SignalState | None]:
        """Training health of each run at its latest judged step; never blocks."""
        return {run: fold.judge.health.state for run, fold in list(self._runs.items())}

    def poll(self) -> None:
        """Read everything once and publish."""
        begin = time.perf_counter()
        guard = self._faults.guard
        with self._lock:
            self._watchdog.begin()
            with guard("folder", what="new segments"):
                self._adopt_new()
            with guard("folder", what="processes of another run"):
                self._refile()
            for fold in list(self._runs.values()):
                self._poll_run(fold)
            if self._folder.reaps:
                self._keep()
            with guard("folder", what="ended processes"):
                self._remove_ended()
            self._devices.look(time.monotonic(), self._runs.values())
            self._is_calm = self._calm()
            self._clock.observe(p.follower.begin_offset_ns for p in self._living())
            self._num_polls += 1
            self._is_stale = True
            self._watchdog.end()
        self._poll_elapsed = time.perf_counter() - begin
        self._polled_seconds = time.monotonic()

    def _keep(self, *, is_last: bool = False) -> None:
        """Store the state from which the next agent continues."""
        with self._faults.guard("keeping", what="totals"):
            self._totals_file.keep(self._runs.values(), is_last=is_last)
        with self._faults.guard("keeping", what="incidents"):
            self._incidents_file.keep(self._runs.values(), is_last=is_last)

    def _poll_run(self, fold: LocalRun) -> None:
        """Read each process and run each judgement separately, so that failures stay isolated."""
        guard, run = self._faults.guard, fold.run
        begin_ns = time.monotonic_ns()  # a loaded host may hold this reading up: judge as of now
        for (role, label), process in list(fold.processes.items()):
            if process.is_living:
                with guard("reading", run, f"rank {label} ({role})"):
                    self._read(fold, process)
        for outside in fold.outside:
            with guard("reading", run, f"rank {outside.label} (from outside)"):
                outside.look(time.monotonic_ns())
        with guard("keeping", run, "incidents"):
            self._incidents_file.resume(fold)
        fold.engines = self._engines.facts(run)
        with guard("judgement", run, "run"):
            fold.judge_reading(begin_ns)
        if self._folder.reaps:
            with guard("keeping", run, "evidence"):
                self._evidence.observe(fold)
                self._snapshots.observe(fold)
            with guard("keeping", run, "baselines"):
                self._health_files.keep(run, fold.judge.health)

    def _loop(self) -> None:
        self._guarded_poll()
        self._first_reading.set()
        while not self._stop.wait(self._config.poll_seconds):
            with self._faults.guard("folder", what="pace"):
                if self._may_rest(time.monotonic()):
                    self._watchdog.end()
                    continue
            self._guarded_poll()

    def _may_rest(self, now: float) -> bool:
        """Whether this reading can be left out: not when one ended, which died first is asked."""
        is_soon = now - self._polled_seconds < _CALM_SECONDS - self._config.poll_seconds / 2
        is_watched = now - self._looked_seconds < _LOOKED_SECONDS
        if not (is_soon and self._is_calm) or is_watched or self._folder.has_changed():
            return False
        return all(p.is_alive_now() for p in self._living())

    def _living(self) -> list[Process]:
        return [p for fold in self._runs.values() for p in fold.processes.values() if p.is_living]

    def _calm(self) -> bool:
        """Whether there are processes, none of them young, and their rings have much room."""
        living = self._living()
        old_ns = time.monotonic_ns() - int(_YOUNG_SECONDS * 1e9)
        is_sampled = any(fold.outside for fold in self._runs.values())
        return bool(living and not is_sampled) and all(
            p.ring_share < _FULLEST_CALM_RING and p.follower.begin_ns < old_ns for p in living
        )

    def _guarded_poll(self) -> None:
        """What is outside every guard of its own does not end the thread either."""
        with self._faults.guard("folder", what="reading"):
            self.poll()

    def _adopt_new(self) -> None:
        followers = list(self._folder.new_followers())
        for follower in sorted(followers, key=lambda f: f.preamble.created_epoch_ns):
            name = plain(os.path.basename(follower.path))
            with self._faults.guard("folder", what=f"segment {name}"):
                process = Process(follower)
                if (totals := self._totals_file.pop(process)) is not None:
                    process.resume(totals)
                self._adopt(process)

    def _adopt(self, process: Process) -> None:
        fold = self._fold(process.follower.identity.run)
        replaced = fold.adopt(process)
        if replaced is not None and replaced.is_living:
            fold.add(replaced, *replaced.finish(replaced.liveness()))
            self._ended[replaced.follower.path] = 0.0

    def _fold(self, run: str) -> LocalRun:
        fold = self._runs.get(run)
        if fold is None:
            peaks, models = self._config.peak_tflops, self._config.model_config
            node = self._reporter.node if self._reporter else ""
            fold = LocalRun(run, self._critical, self._faults, peaks, models, node)
            self._runs[run] = fold
            fold.judge.health = self._health_files.restore(run, fold.judge.health)
            fold.job.alerts = None if self._awaits_alerts else ()
            fold.unsent = None if self._reporter is None else UnsentFacts()
        return fold

    def _refile(self) -> None:
        for run, fold in list(self._runs.items()):
            for process in [p for p in fold.processes.values() if p.has_new_identity]:
                fold.release(process)
                self._adopt(process)
            if not fold.processes and not fold.outside:
                self._forget(run)

    def _read(self, fold: LocalRun, process: Process) -> None:
        state = process.liveness()
        if state in ("live", "unknown"):
            process.state = state
            fold.add(process, *process.poll())
        else:
            seconds = 0.0 if state in ("exited", "detached") else self._config.keep_dead_seconds
            self._ended[process.follower.path] = time.monotonic() + seconds
            fold.add(process, *process.finish(state))

    def _remove_ended(self) -> None:
        """Remove segments of ended processes: orderly ends at once, deaths after a while."""
        now = time.monotonic()
        for path, due in list(self._ended.items()):
            if now > due:
                self._folder.reap(path)
                del self._ended[path]
        for fold in self._runs.values():
            fold.remove_ended()
        old_ns = time.monotonic_ns() - int(_FORGET_RUN_SECONDS * 1e9)
        ended = sorted((fold.latest_ns, run) for run, fold in self._runs.items() if fold.has_ended)
        for i, (latest_ns, run) in enumerate(reversed(ended)):
            if i >= KEEP_RUNS or latest_ns < old_ns:
                self._forget(run)

    def _forget(self, run: str) -> None:
        """Its records are counted on in the agent's own."""
        row = view.guarded_row(self._runs[run])
        self._num_dropped_records += view.num_records(row)
        self._num_dropped_lost += view.num_lost_records(row)
        self._num_dropped_runs += bool(row.ranks)
        self._health_files.forget(run)
        self._faults.forget(run)
        del self._runs[run]

    def _render(self) -> Snapshot:
        shown = self._incidents_file.without_ended_before(self._runs)
        rows = sorted(map(view.guarded_row, shown.values()), key=lambda row: row.begin_seconds)
        finished = self._incidents_file.finished(shown)
        return Snapshot(time.time(), self._agent_row(rows), tuple(rows), finished)

    def _agent_row(self, runs: list[RunRow]) -> AgentRow:
        ranks = [rank for run in runs for rank in run.ranks]
        state_files = self._totals_file, self._incidents_file, self._evidence
        problems = (
            *self._folder.problems.values(),
            *self._health_files.problems.values(),
            *filter(None, (file.problem for file in state_files)),
            *room_problems(self._config.directory),
            *self._clock.problems(),
            *self._reported.values(),
        )
        return AgentRow(
            version=__version__,
            pid=os.getpid(),
            node=socket.gethostname(),
            begin_seconds=self._begin,
            num_polls=self._num_polls,
            poll_elapsed_seconds=self._poll_elapsed,
            num_segments=sum(r.state in ("live", "unknown") and r.outside is None for r in ranks),
            num_records=self._num_dropped_records + sum(map(view.num_records, runs)),
            num_lost_records=self._num_dropped_lost + sum(map(view.num_lost_records, runs)),
            num_dropped_runs=self._num_dropped_runs,
            num_reaped_segments=self._folder.num_reaped,
            num_exporter_errors=self._num_errors,
            other_agent_pid=self._folder.other_agent_pid,
            detector=JobJudge.parameters,
            is_job_ended=self._is_job_ended,
            problems=problems,
            read_seconds=self._watchdog.read_seconds,
            faults=self._faults.rows(""),
            num_faults=dict(self._faults.num_by_part),
            devices=self._devices.rows,
            hub=None if self._hub is None else self._hub(),
            spans=None if self._spans is None else self._spans(),
        )
