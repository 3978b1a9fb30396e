"""The agent: one thread that reads all segments, folds them and publishes a Snapshot.

Renderers call ``snapshot``, ``scalar_history`` and ``timeline`` from their own threads. A snapshot
is rendered when somebody asks, once per reading: most of the time nobody looks.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from dfx_agent import __version__
from dfx_agent.agent import view
from dfx_agent.agent.config import Config
from dfx_agent.agent.evidence import Evidence
from dfx_agent.agent.fold import RunFold
from dfx_agent.agent.health_files import HealthFiles
from dfx_agent.agent.outside import OutsideProcess, placed
from dfx_agent.agent.process import Process
from dfx_agent.agent.reader import Folder
from dfx_agent.agent.signals import PARAMETERS
from dfx_agent.agent.totals_file import TotalsFile
from dfx_agent.metrics.alerts import alerts_with
from dfx_agent.metrics.alerts.stability import DIVERGENCE
from dfx_agent.snapshot import (
    AgentRow,
    RunRow,
    ScalarHistory,
    SegmentProblem,
    Snapshot,
    StepRow,
    TimelineRow,
)
from dfx_agent.snapshot_health import SignalHistory

_FORGET_RUN_SECONDS = 3600.0
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
        self._evidence = Evidence(config.directory)
        self._health_files = HealthFiles(config.directory)
        self._totals_file = TotalsFile(config.directory)
        (divergence,) = alerts_with(dict(config.thresholds), (DIVERGENCE,))
        self._critical = divergence.condition
        self._runs: dict[str, RunFold] = {}
        self._ended: dict[Process, float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._looked_seconds = self._polled_seconds = 0.0
        self._is_calm = False
        self._thread = threading.Thread(target=self._loop, name="dfx-agent", daemon=True)
        self._begin = time.time()
        self._num_polls = 0
        self._num_errors = 0
        self._last_error: SegmentProblem | None = None
        self._reported: dict[tuple[str, str], SegmentProblem] = {}
        self._poll_elapsed = 0.0
        self._is_stale = False
        self._is_job_ended = False
        self._snapshot = self._render()

    @property
    def folder_uid(self) -> int:
        """Who owns the folder: whose jobs are followed."""
        return self._folder.owner_uid

    def announce(self, url: str, certificate: str = "") -> None:
        """Where verbs of this machine find us, and the certificate's path; before ``start``."""
        self._folder.announce(url, certificate)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Read once more and let the folder go."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._guarded_poll()
        for run, fold in self._runs.items():
            if self._folder.reaps:
                self._health_files.keep(run, fold.health, is_last=True)
        if self._folder.reaps:
            self._totals_file.keep(self._living(), is_last=True)
        self._evidence.close()
        self._health_files.close()
        self._folder.close()

    def see_job_ended(self) -> None:
        """The job that this agent was started with has ended: read its end, and say so."""
        self._is_job_ended = True
        self._guarded_poll()

    def snapshot(self) -> Snapshot:
        self._looked_seconds = time.monotonic()
        if self._is_stale:
            with self._lock:
                if self._is_stale:
                    self._snapshot = self._render()
                    self._is_stale = False
        return self._snapshot

    def scalar_history(self, run: str, keys: Sequence[str]) -> Iterator[ScalarHistory]:
        """Of the ``keys`` that are known, all for none; each is read when it is asked for.

        KeyError on an unknown run.
        """
        with self._lock:
            fold = self._runs[run]
            known = fold.store.keys()
        return (self._history(fold, key) for key in (keys or known) if key in known)

    def _history(self, fold: RunFold, key: str) -> ScalarHistory:
        with self._lock:
            return view.history(fold, key)

    def timeline(self, run: str, num_steps: int) -> tuple[TimelineRow, ...]:
        with self._lock:
            return view.timeline_rows(self._runs[run], num_steps)

    def signal_history(self, run: str, num_steps: int) -> SignalHistory:
        with self._lock:
            return view.signal_history(self._runs[run], num_steps)

    def closed_steps(self, run: str, after_step: int | None) -> tuple[StepRow, ...]:
        """Closed steps of every role that are kept, by begin. KeyError on an unknown run."""
        with self._lock:
            rows = self._runs[run].rows.values()
            found = [row for row in rows if after_step is None or row.step > after_step]
        return tuple(sorted(found, key=lambda row: row.begin_seconds))

    def step_scalars(self, run: str, after_step: int | None) -> dict[int, dict[str, float]]:
        """Step -> native key -> mean over ranks. KeyError on an unknown run."""
        with self._lock:
            return self._runs[run].store.after(after_step)

    def report(self, run: str, part: str, message: str) -> None:
        """Something beside the agent failed: counted, and shown with its own problems."""
        with self._lock:
            self._num_errors += 1
            self._reported[run, part] = SegmentProblem(part, "exporter", message)
            self._is_stale = True

    def settle(self, run: str, part: str) -> None:
        """What was reported of this part is over."""
        with self._lock:
            self._reported.pop((run, part), None)
            self._is_stale = True

    def reset_signals(self, run: str) -> None:
        """The operator says that the present state of ``run`` is normal. KeyError if unknown."""
        with self._lock:
            self._runs[run].health.reset()
            self._is_stale = True

    def observe_outside(self, run: str, processes: Iterable[OutsideProcess]) -> None:
        """From now on ``processes``, which have no guest, are shown as ranks of ``run``."""
        with self._lock:
            self._fold(run).outside = placed(processes)
            self._is_stale = True

    def poll(self) -> None:
        """Read everything once and publish."""
        begin = time.perf_counter()
        with self._lock:
            self._adopt_new()
            self._refile()
            for fold in self._runs.values():
                for process in list(fold.processes.values()):
                    self._read(fold, process)
                for outside in fold.outside:
                    outside.look(time.monotonic_ns())
                fold.close_steps()
                if self._folder.reaps:
                    self._evidence.observe(fold)
                    self._health_files.keep(fold.run, fold.health)
            if self._folder.reaps:
                self._totals_file.keep(self._living())
            self._let_go()
            self._is_calm = self._calm()
            self._num_polls += 1
            self._is_stale = True
        self._poll_elapsed = time.perf_counter() - begin
        self._polled_seconds = time.monotonic()

    def _loop(self) -> None:
        while not self._stop.wait(self._config.poll_seconds):
            if not self._may_rest(time.monotonic()):
                self._guarded_poll()

    def _may_rest(self, now: float) -> bool:
        """Whether this reading can be left out: not when one ended, which died first is asked."""
        is_soon = now - self._polled_seconds < _CALM_SECONDS - self._config.poll_seconds / 2
        is_watched = now - self._looked_seconds < _LOOKED_SECONDS
        if not (is_soon and self._is_calm) or is_watched or self._folder.has_changed():
            return False
        return all(p.follower_lives() for p in self._living())

    def _living(self) -> list[Process]:
        processes = [p for fold in self._runs.values() for p in fold.processes.values()]
        return [process for process in processes if process.is_living]

    def _calm(self) -> bool:
        """Whether there are processes, none of them young, and their rings have much room."""
        living = self._living()
        old_ns = time.monotonic_ns() - int(_YOUNG_SECONDS * 1e9)
        is_sampled = any(fold.outside for fold in self._runs.values())
        return bool(living and not is_sampled) and all(
            p.ring_share < _FULLEST_CALM_RING and p.follower.begin_ns < old_ns for p in living
        )

    def _guarded_poll(self) -> None:
        """One strange segment must not blind us to all others: say it, count it, go on."""
        try:
            self.poll()
        except Exception as error:  # noqa: BLE001 (shown on the page and in the metrics)
            self._num_errors += 1
            message = f"reading failed ({type(error).__name__}: {error}): please report it"
            self._last_error = SegmentProblem(self._config.directory, "internal", message)

    def _adopt_new(self) -> None:
        followers = list(self._folder.new_followers())
        for follower in sorted(followers, key=lambda f: f.preamble.created_epoch_ns):
            process = Process(follower)
            kept = self._totals_file.of(process)
            if kept is not None:
                process.resume(kept)
            self._adopt(process)

    def _adopt(self, process: Process) -> None:
        fold = self._fold(process.follower.identity.run)
        replaced = fold.adopt(process)
        if replaced is not None and replaced.is_living:
            fold.add(replaced, *replaced.finish(replaced.follower.liveness()))
            self._ended[replaced] = 0.0

    def _fold(self, run: str) -> RunFold:
        fold = self._runs.get(run)
        if fold is None:
            fold = self._runs[run] = RunFold(run, self._critical)
            fold.health = self._health_files.restore(run, fold.health)
        return fold

    def _refile(self) -> None:
        for run, fold in list(self._runs.items()):
            for process in [p for p in fold.processes.values() if p.is_misfiled]:
                fold.release(process)
                self._adopt(process)
            if not fold.processes and not fold.outside:
                self._health_files.forget(run)
                del self._runs[run]

    def _read(self, fold: RunFold, process: Process) -> None:
        if not process.is_living:
            return
        state = process.follower.liveness()
        if state in ("live", "unknown"):
            process.state = state
            fold.add(process, *process.poll())
        else:
            fold.add(process, *process.finish(state))
            self._ended[process] = time.monotonic()

    def _let_go(self) -> None:
        """Remove segments of ended processes: orderly ends at once, deaths after a while."""
        now = time.monotonic()
        for process, ended in list(self._ended.items()):
            if process.state == "exited" or now - ended > self._config.keep_dead_seconds:
                self._folder.reap(process.follower.path)
                del self._ended[process]
        for run, fold in list(self._runs.items()):
            events = [p.last_event_ns or p.follower.begin_ns for p in fold.processes.values()]
            quiet_seconds = (time.monotonic_ns() - max(events, default=0)) / 1e9
            ended = not fold.outside and not any(p.is_living for p in fold.processes.values())
            if ended and quiet_seconds > _FORGET_RUN_SECONDS:
                self._health_files.forget(run)
                del self._runs[run]

    def _render(self) -> Snapshot:
        rows = sorted(map(view.run_row, self._runs.values()), key=lambda row: row.begin_seconds)
        return Snapshot(time.time(), self._agent_row(rows), tuple(rows))

    def _agent_row(self, runs: list[RunRow]) -> AgentRow:
        ranks = [rank for run in runs for rank in run.ranks]
        problems = (
            *self._folder.problems.values(),
            *self._health_files.problems.values(),
            *filter(None, (self._totals_file.problem,)),
            *self._reported.values(),
        )
        return AgentRow(
            version=__version__,
            pid=os.getpid(),
            node=socket.gethostname(),
            begin_seconds=self._begin,
            num_polls=self._num_polls,
            poll_elapsed_seconds=self._poll_elapsed,
            num_segments=sum(
                rank.state in ("live", "unknown") and rank.outside is None for rank in ranks
            ),
            num_records=sum(rank.num_records for rank in ranks),
            num_lost_records=sum(rank.num_lost_records for rank in ranks),
            num_reaped_segments=self._folder.num_reaped,
            num_exporter_errors=self._num_errors,
            other_agent_pid=self._folder.other_agent_pid,
            detector=PARAMETERS,
            is_job_ended=self._is_job_ended,
            problems=(*problems, self._last_error) if self._last_error else problems,
        )
