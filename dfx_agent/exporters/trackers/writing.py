"""Writes closed steps to the configured trackers, each in its own thread.

A slow tracker delays nothing else. If a tracker fails, writing stops for that run, and the failure
is counted and reported. Each step is written once and in order, when its late values have arrived.
Values that arrive later, or again after a restart of the job, are counted but not written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol

from dfx_agent.base.errors import ConfigError
from dfx_agent.base.log import OncePerPlace
from dfx_agent.exporters import trackers
from dfx_agent.exporters.state import TrackerRow
from dfx_agent.exporters.trackers.step_metrics import step_metrics
from dfx_agent.exporters.trackers.tracker import Options, RunWriter, Tracker
from dfx_agent.snapshot import RunRow, Snapshot, StepRow

POLL_SECONDS = 1.0
STOP_SECONDS = 15.0
# a step this far behind is complete, and so is a step without new values for this long
_STEPS_BEHIND = 2
_SETTLE_SECONDS = 5.0
# so many written steps are checked for late values
_KEEP_STEPS = 64

# (run, tracker, one line for people)
Report = Callable[[str, str, str], None]
# known values of a step: ("scalar", key) and (role, rank, wall seconds)
Parts = frozenset[tuple[object, ...]]


class StepSource(Protocol):
    """What a tracker reads from the agent. KeyError on an unknown run."""

    def snapshot(self) -> Snapshot:
        """The latest snapshot."""

    def closed_steps(self, run: str, after_step: int | None) -> tuple[StepRow, ...]:
        """Stored closed steps of every role, after ``after_step`` if it is given."""

    def step_scalars(self, run: str, after_step: int | None) -> Mapping[int, Mapping[str, float]]:
        """Step -> native key -> value in its native unit, mean over ranks."""


def names() -> list[str]:
    """Names of the trackers: the files of this folder that define ``open_tracker``."""
    found = (module.name for module in iter_modules(trackers.__path__))
    return sorted(n for n in found if hasattr(_module(n), "open_tracker"))


def open_trackers(
    track_with: Sequence[str], tracker_kwargs: Mapping[str, Options]
) -> dict[str, Tracker]:
    """Name -> open tracker. Raises ConfigError, or TrackerError with the reason."""
    if not track_with and not tracker_kwargs:
        return {}
    tracker_names = names()
    for name in track_with:
        if name not in tracker_names:
            raise ConfigError(
                f"track_with: no tracker {name!r}: there are {', '.join(tracker_names)}"
            )
    for name in tracker_kwargs:
        if name not in track_with:
            problem = f"tracker_kwargs: {name!r} is not in track_with: "
            raise ConfigError(f"{problem}write tracker_kwargs: {{TRACKER: {{KEY: VALUE}}}}")
    return {n: _module(n).open_tracker(tracker_kwargs.get(n, {})) for n in track_with}


def _module(name: str) -> Any:
    return import_module(f"{trackers.__name__}.{name}")


@dataclass
class _Run:
    """One run in one tracker. ``writer``: None before the first step and after a failure."""

    writer: RunWriter | None = None
    has_failed: bool = False
    last_step: int | None = None
    num_steps: int = 0
    num_dropped_steps: int = 0
    num_late_values: int = 0
    written: dict[int, Parts] = field(default_factory=dict)
    waiting: dict[int, tuple[Parts, float]] = field(default_factory=dict)


class TrackerThread:
    """Writes the steps of ``source`` to one tracker."""

    def __init__(self, name: str, tracker: Tracker, source: StepSource, report: Report) -> None:
        self._name = name
        self._tracker = tracker
        self._source = source
        self._report = report
        self._log = OncePerPlace("dfx_agent.exporters")
        self._runs: dict[str, _Run] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"dfx-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Request the end; steps that are closed now are written first."""
        self._stop.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end. Returns whether everything was written in time."""
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def rows(self) -> list[TrackerRow]:
        return [
            TrackerRow(
                self._name, run, not state.has_failed, state.num_steps, state.num_dropped_steps,
                state.num_late_values,
            )
            for run, state in list(self._runs.items())
        ]  # fmt: skip

    def _loop(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self._look(is_last=False)
        self._look(is_last=True)
        for run, state in self._runs.items():
            self._close(run, state)

    def _look(self, *, is_last: bool) -> None:
        snapshot = self._source.snapshot()
        for run in snapshot.runs:
            state = self._runs.setdefault(run.run, _Run())
            try:
                self._follow(run, state, is_last=is_last)
            except KeyError:  # the agent has dropped the run meanwhile
                continue
            except Exception as error:  # noqa: BLE001 (other runs are not affected)
                self._log.error(f"following run {run.run}", error)
        gone = self._runs.keys() - {run.run for run in snapshot.runs}
        for name in gone:
            self._close(name, self._runs.pop(name))

    def _follow(self, run: RunRow, state: _Run, *, is_last: bool) -> None:
        after = None if state.last_step is None else state.last_step - _KEEP_STEPS
        rows = self._source.closed_steps(run.run, after)
        scalars = self._source.step_scalars(run.run, after)
        by_step: dict[int, list[StepRow]] = {}
        for row in rows:
            by_step.setdefault(row.step, []).append(row)
        parts = {n: _parts(by_step.get(n, ()), scalars.get(n, {})) for n in {*by_step, *scalars}}
        _note_late(state, parts)
        for step in _complete_steps(run, state, parts, is_last=is_last):
            step_rows = by_step.get(step, [])
            metrics = step_metrics(run.framework, scalars.get(step, {}), step_rows, run.ranks)
            ended = max((row.end_seconds for row in step_rows), default=time.time())
            self._write(run.run, state, step, ended, metrics)
            state.last_step = step
            state.written[step] = parts[step]
        for step in sorted(state.written)[:-_KEEP_STEPS]:
            del state.written[step]
        if _has_ended(run):
            self._close(run.run, state)

    def _write(
        self, run: str, state: _Run, step: int, ended: float, metrics: Mapping[str, float]
    ) -> None:
        if state.has_failed:
            state.num_dropped_steps += 1
            return
        try:
            if state.writer is None:
                state.writer = self._tracker(run)
            state.writer.write(step, ended, metrics)
            state.num_steps += 1
        except Exception as error:  # noqa: BLE001 (whatever a library raises: counted and reported)
            state.num_dropped_steps += 1
            self._fail(run, state, f"step {step} and later are not written", error)

    def _fail(self, run: str, state: _Run, what: str, error: Exception) -> None:
        state.has_failed = True
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        self._report(run, self._name, f"tracker {self._name}, run {run}: {what} ({reason})")
        self._close(run, state)

    def _close(self, run: str, state: _Run) -> None:
        writer, state.writer = state.writer, None
        if writer is None:
            return
        try:
            writer.close()
        except Exception as error:  # noqa: BLE001 (as above; a failed one was reported already)
            if not state.has_failed:
                self._fail(run, state, "its end could not be written", error)


class Trackers:
    """All configured trackers; implements ``TrackerSource``."""

    def __init__(self, trackers: Mapping[str, Tracker], source: StepSource, report: Report) -> None:
        self._threads = {n: TrackerThread(n, t, source, report) for n, t in trackers.items()}

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def stop(self) -> list[str]:
        """Write all closed steps; returns the names of trackers that did not finish in time."""
        for thread in self._threads.values():
            thread.stop()
        deadline = time.monotonic() + STOP_SECONDS
        return [
            name
            for name, thread in self._threads.items()
            if not thread.join(max(0.0, deadline - time.monotonic()))
        ]

    def rows(self) -> tuple[TrackerRow, ...]:
        return tuple(row for thread in self._threads.values() for row in thread.rows())


def _parts(rows: Sequence[StepRow], scalars: Mapping[str, float]) -> Parts:
    cells = ((row.role, cell.rank, cell.split.wall_seconds) for row in rows for cell in row.cells)
    return frozenset((*cells, *(("scalar", key) for key in scalars)))


def _note_late(state: _Run, parts: Mapping[int, Parts]) -> None:
    """Count values that arrived after their step was written, each once."""
    if state.last_step is None:
        return
    for step in (n for n in parts if n <= state.last_step):
        written_parts = state.written.get(step, frozenset())
        state.num_late_values += len(parts[step] - written_parts)
        state.written[step] = written_parts | parts[step]


def _complete_steps(
    run: RunRow, state: _Run, parts: Mapping[int, Parts], *, is_last: bool
) -> list[int]:
    """Steps to write now, in order: none before a step that may still change."""
    now = time.monotonic()
    pending = sorted(n for n in parts if state.last_step is None or n > state.last_step)
    before, state.waiting = state.waiting, {}
    has_ended, passed = _has_ended(run), _passed_steps(run, pending)
    complete: list[int] = []
    is_open = False
    for step in pending:
        earlier = before.get(step)
        since = earlier[1] if earlier and earlier[0] == parts[step] else now
        state.waiting[step] = parts[step], since
        is_settled = step < passed[0] and (is_last or now - since >= _SETTLE_SECONDS)
        is_open = is_open or not (has_ended or step < passed[1] or is_settled)
        if not is_open:
            complete.append(step)
    return complete


def _passed_steps(run: RunRow, pending: Sequence[int]) -> tuple[int, int]:
    """(steps below it are over, steps below it are complete).

    A step is over when every live process has finished it, and complete when one of them is two
    steps ahead.
    For a run whose processes report no step (a followed log), a step with values is over.
    """
    steps = [r.step for r in run.ranks if r.state in ("live", "unknown") and r.step is not None]
    latest = max(steps, default=pending[-1] if pending else 0)
    behind = latest - _STEPS_BEHIND + 1
    return (min(steps) if steps else latest + 1), behind


def _has_ended(run: RunRow) -> bool:
    return not any(rank.state in ("live", "unknown") for rank in run.ranks)
