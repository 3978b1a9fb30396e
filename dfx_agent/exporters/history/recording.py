"""Writes the history of all runs every 5 s, in a thread of its own.

The thread reads what the agent has published, as a tracker does, so neither the job nor the agent's
poll waits for the disk. If a write fails, the run is written again 5 s later from what the agent
still stores; steps that it no longer stores are counted as missed. A failure is counted and shown.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from dfx_agent.base.errors import BlindError
from dfx_agent.base.log import OncePerPlace
from dfx_agent.exporters.history import folder
from dfx_agent.exporters.history.run_file import Fact, RunFile, has_ended
from dfx_agent.snapshot import AgentRow, Alerts, RunRow, Snapshot, StepRow

EVERY_SECONDS = 5.0
STOP_SECONDS = 10.0
_FIRST_SECONDS = 1.0  # what a short job was started with can only be read while it lives
_CLEAN_UP_SECONDS = 600.0
# the rest of the disk belongs to the job's checkpoints
LEAST_FREE_BYTES = 256 << 20

# "" when history is written again after a failure
Report = Callable[[str], None]
Describe = Callable[[RunRow, AgentRow], Iterable[Fact]]


class HistorySource(Protocol):
    """What is stored. KeyError on an unknown run."""

    def snapshot(self) -> Snapshot:
        """The latest snapshot."""

    def closed_steps(self, run: str, after_step: int | None) -> Sequence[StepRow]:
        """Stored closed steps of every role, sorted by begin."""

    def step_scalars(
        self, run: str, after_step: int | None, since_seconds: float | None = None
    ) -> Mapping[int, Mapping[str, float]]:
        """Step -> native key -> mean over ranks, of the steps after ``after_step``.

        ``since_seconds``: and of earlier steps with a value that arrived since then, monotonic.
        """


class HistoryThread:
    """Stores the runs of one agent or hub below ``directory``."""

    def __init__(
        self,
        source: HistorySource,
        alerts: Callable[[], Alerts],
        describe: Describe,
        report: Report,
        directory: str,
        limits: tuple[float, int],
    ) -> None:
        """``limits``: age in days and bytes of all files, above which old files are removed."""
        self._source, self._alerts, self._describe = source, alerts, describe
        self._report = report
        self.directory, self._limits = directory, limits
        self.num_failures = 0
        self._problem = ""
        self._log = OncePerPlace("dfx_agent.exporters")
        self._files: dict[str, RunFile] = {}
        self._ended_before: set[tuple[str, float]] = set()
        self._cleaned_up_seconds = -_CLEAN_UP_SECONDS
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dfx-history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Write a last time. Returns whether that was done in time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        return not self._thread.is_alive()

    def path_of(self, run: str) -> str | None:
        """The file of a run that is being written; safe in any thread."""
        file = self._files.get(run)
        return None if file is None else file.path

    def _loop(self) -> None:
        pause_seconds = _FIRST_SECONDS
        while not self._stop.wait(pause_seconds):
            self._guarded_write()
            pause_seconds = EVERY_SECONDS
        self._guarded_write()
        for run in list(self._files):
            self._close(run)

    def _guarded_write(self) -> None:
        try:
            self.write()
        except (OSError, sqlite3.Error) as error:
            self._note(f"history is not written: {_reason(error)}: set history_directory")
        except BlindError as error:  # the agent says so itself, and what to do
            self._note(f"history is not written until the agent reads again: {_reason(error)}")
        except Exception as error:  # noqa: BLE001 (history never ends the agent)
            self._log.error("history", error)
            self._note(f"history is not written: {type(error).__name__}: {error}")

    def _note(self, problem: str) -> None:
        """Count a failure and report it once; "" after a success."""
        self.num_failures += bool(problem)
        if problem != self._problem:
            self._problem = problem
            self._report(problem)

    def write(self) -> None:
        """Store what is new of every run. OSError, sqlite3.Error."""
        snapshot = self._source.snapshot()
        if snapshot.agent.other_agent_pid is not None:
            return  # that agent stores the same runs
        rows = [row for row in snapshot.runs if row.ranks]
        if rows:
            folder.prepare(self.directory)
            self._clean_up()
            if (free := folder.free_bytes(self.directory)) < LEAST_FREE_BYTES:
                raise OSError(f"only {free >> 20} MiB are free in {self.directory}")
        alerts = self._alerts()
        for row in rows:
            self._write_run(row, snapshot.agent, alerts)
        for run in self._files.keys() - {row.run for row in rows}:
            self._close(run)
        self._note("")

    def _write_run(self, row: RunRow, agent: AgentRow, alerts: Alerts) -> None:
        if has_ended(row) and (row.run, row.begin_seconds) in self._ended_before:
            return
        file = self._files.get(row.run)
        is_new = file is None
        if file is None:
            mode = folder.journal_mode(self.directory)
            file = self._files[row.run] = RunFile.open_for(
                self.directory, row, mode, is_of_hub=bool(agent.nodes)
            )
            if file.is_ended and has_ended(row):  # the agent that saw it run has concluded it
                self._finish(row)
                return
        try:
            steps = self._source.closed_steps(row.run, None)
            read_seconds = time.monotonic()
            scalars = self._source.step_scalars(
                row.run, file.last_scalars, file.scalars_read_seconds
            )
            file.begin()
            if is_new:
                file.write_agent(agent)
            if not file.has_config:
                file.write_facts(self._describe(row, agent))
            num_steps = file.write_steps(steps, row.attempt)
            file.write_scalars(scalars)
            file.write_alerts((a for a in alerts.alerts if a.run == row.run), time.time())
            has_changed = file.write_run(row, time.time())
            file.commit()
            file.scalars_read_seconds = read_seconds
        except KeyError:  # the agent has dropped the run meanwhile
            self._abandon(row.run)
            return
        except BaseException:
            self._abandon(row.run)
            raise
        if has_ended(row) and row.ending and not (num_steps or has_changed):
            self._finish(row)

    def _finish(self, row: RunRow) -> None:
        self._close(row.run, is_complete=True)
        self._ended_before.add((row.run, row.begin_seconds))

    def _abandon(self, run: str) -> None:
        """What was not committed is not stored; the next write opens the file again."""
        try:
            self._close(run)
        except (OSError, sqlite3.Error) as error:
            self._log.error(f"closing the history of {run}", error)

    def _close(self, run: str, *, is_complete: bool = False) -> None:
        self._files.pop(run).close(is_complete=is_complete)

    def _clean_up(self) -> None:
        """Remove old files, now and then."""
        now = time.monotonic()
        if now - self._cleaned_up_seconds < _CLEAN_UP_SECONDS:
            return
        self._cleaned_up_seconds = now
        in_use = frozenset(file.path for file in self._files.values())
        folder.remove_old(self.directory, *self._limits, in_use, time.time())


def _reason(error: Exception) -> str:
    """In one line, with the path if the system names it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())
