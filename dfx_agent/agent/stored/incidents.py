"""Open incidents of the runs of a folder, for the next agent: id and begin outlive a restart.

The file also holds how processes ended: a later agent sees only that they are gone, not when and
why. Ended runs are stored with their verdicts, because their segments are removed.

One file in the agent's own folder. A run of the same name is the same run while one of its
processes still lives: a job that is started again under that name begins with nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from dfx_agent.agent.local_run import LocalRun
from dfx_agent.agent.stored.document import StoredDocument
from dfx_agent.agent.stored.totals import key_of
from dfx_agent.job.incidents.book import TrackedIncident
from dfx_agent.node.track import Ending
from dfx_agent.snapshot import Incident, RunVerdicts, SegmentProblem
from dfx_agent.snapshot.document import Document, reason

NAME = "incidents.json"
EVERY_SECONDS = 5.0
_MAX_FINISHED = 8


@dataclass(frozen=True)
class ResumableRun:
    """One run: its processes, how the ended processes ended, and the open incidents."""

    processes: tuple[str, ...]
    ended: dict[str, Ending]
    open: tuple[TrackedIncident, ...]
    past: tuple[Incident, ...] = ()


@dataclass(frozen=True)
class File:
    """What is not whole in one run costs that run alone: it is checked later."""

    format: Literal[1]
    runs: dict[str, Any]
    finished: tuple[Any, ...] = ()


RUN = Document[ResumableRun](ResumableRun)
FINISHED = Document[RunVerdicts](RunVerdicts)
FILE = Document[File](File)


class IncidentsFile:
    """Incidents of one agent. No method raises: ``problem`` is the last failed read or write."""

    def __init__(self, directory: str) -> None:
        self._file = StoredDocument(directory, NAME, FILE)
        found = self._file.load()
        self._found = found.runs if found else {}
        self._finished = _loaded(found.finished if found else ())
        self._processes_before: dict[str, frozenset[str]] = {}
        self._written: tuple[object, ...] | None = None  # as it was written
        self._written_seconds = time.monotonic()

    @property
    def problem(self) -> SegmentProblem | None:
        if not self._file.problem:
            return None
        message = f"{self._file.problem}: incidents do not survive a restart of the agent"
        return SegmentProblem(NAME, "incidents", message)

    def resume(self, fold: LocalRun) -> None:
        """Give the run what was open in it; once, at its first reading."""
        if fold.run not in self._found:
            return
        try:
            entry = RUN.loaded(self._found.pop(fold.run))
        except ValueError as error:
            self._file.problem = f"cannot use run {fold.run} in {NAME} ({reason(error)})"
            return
        present = {key_of(p.follower.preamble): p for p in fold.processes.values()}
        if present.keys().isdisjoint(entry.processes):
            return
        self._processes_before[fold.run] = frozenset(entry.processes)
        fold.job.incidents.resume(entry.open, time.time())
        fold.job.incidents.past.resume(entry.past)
        for key, ending in entry.ended.items():
            if key in present and not present[key].is_living:
                fold.tracks.resume(present[key], ending)

    def keep(self, folds: Iterable[LocalRun], *, is_last: bool = False) -> None:
        """Write open incidents, at most every ``EVERY_SECONDS`` and only if they have changed."""
        now = time.monotonic()
        if not is_last and now - self._written_seconds < EVERY_SECONDS:
            return
        self._written_seconds = now
        folds = list(folds)
        rows = {f.run: _entry(f) for f in folds if _has_content(f) or f.has_ended}
        for fold in folds:
            if not fold.has_ended:  # it was started again
                self._finished.pop(fold.run, None)
        ended = [f for f in folds if f.has_ended and not self._has_ended_before(f)]
        finished = {fold.run: fold.concluded for fold in ended}
        for run, verdicts in finished.items():
            if verdicts is not None and verdicts.ending:
                self._finished.pop(run, None)  # the latest are last
                self._finished[run] = verdicts
        self._finished = dict(list(self._finished.items())[-_MAX_FINISHED:])
        content = rows, tuple(self._finished.values())
        if content != self._written:
            self._written = content
            self._file.save(File(1, dict(rows), content[1]))

    def without_ended_before(self, runs: Mapping[str, LocalRun]) -> dict[str, LocalRun]:
        """``runs`` without the runs whose end ``finished`` already shows."""
        return {run: fold for run, fold in runs.items() if not self._has_ended_before(fold)}

    def _has_ended_before(self, fold: LocalRun) -> bool:
        """Whether an earlier agent saw these very processes end, and only some files remain.

        The files of ranks that ended in order are removed: the others alone look like a part of a
        job on several nodes.
        """
        if not fold.has_ended or fold.run not in self._finished or not fold.part():
            return False
        present = {key_of(process.follower.preamble) for process in fold.processes.values()}
        return present <= self._processes_before.get(fold.run, frozenset())

    def finished(self, present: Collection[str]) -> tuple[RunVerdicts, ...]:
        """Ended runs that are no longer ``present``, latest first."""
        rows = [row for run, row in self._finished.items() if run not in present]
        return tuple(reversed(rows))


def _loaded(rows: Iterable[Any]) -> dict[str, RunVerdicts]:
    """Those that this version can read."""
    found = {}
    for row in rows:
        with suppress(ValueError):
            verdicts = FINISHED.loaded(row)
            found[verdicts.run] = verdicts
    return found


def _has_content(fold: LocalRun) -> bool:
    book = fold.job.incidents
    return bool(
        book.incidents_to_store()
        or book.past.incidents_to_store()
        or any(track.ending for track in fold.tracks)
    )


def _entry(fold: LocalRun) -> ResumableRun:
    tracks = fold.tracks
    return ResumableRun(
        tuple(key_of(p.follower.preamble) for p in fold.processes.values()),
        {key_of(t.process.follower.preamble): t.ending for t in tracks if t.ending},
        fold.job.incidents.incidents_to_store(),
        fold.job.incidents.past.incidents_to_store(),
    )
