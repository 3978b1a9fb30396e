"""Open incidents of the runs of a folder, for the next agent: id and begin outlive a restart.

With them how processes have ended: who comes later sees that they are gone, not when and by what.

One file in the agent's own folder. A run of the same name is the same run while one of its
processes still lives: a job that is started again under that name begins with nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dfx_agent.agent.kept.document import KeptDocument
from dfx_agent.agent.kept.totals import key_of
from dfx_agent.agent.run import RunFold
from dfx_agent.incidents.book import KeptIncident
from dfx_agent.node.track import Ending
from dfx_agent.snapshot import SegmentProblem
from dfx_agent.snapshot.document import Document, reason

NAME = "incidents.json"
EVERY_SECONDS = 5.0


@dataclass(frozen=True)
class KeptRun:
    """Of one run: its processes, how those of them ended that have, and what was open."""

    processes: tuple[str, ...]
    ended: dict[str, Ending]
    open: tuple[KeptIncident, ...]


@dataclass(frozen=True)
class File:
    """What is not whole in one run costs that run alone: it is checked later."""

    format: Literal[1]
    runs: dict[str, Any]


RUN = Document[KeptRun](KeptRun)
FILE = Document[File](File)


class IncidentsFile:
    """Of one agent. Nothing here raises; what cannot be read or kept is a problem."""

    def __init__(self, directory: str) -> None:
        self._file = KeptDocument(directory, NAME, FILE)
        found = self._file.load()
        self._found = found.runs if found else {}
        self._kept: dict[str, KeptRun] | None = None  # as it was written
        self._kept_seconds = time.monotonic()

    @property
    def problem(self) -> SegmentProblem | None:
        if not self._file.problem:
            return None
        message = f"{self._file.problem}: incidents begin anew with each agent"
        return SegmentProblem(NAME, "incidents", message)

    def resume(self, fold: RunFold) -> None:
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
        fold.incidents.resume(entry.open, time.time())
        for key, ending in entry.ended.items():
            if key in present and not present[key].is_living:
                fold.hangs.tracks.resume(present[key], ending)

    def keep(self, folds: Iterable[RunFold], *, is_last: bool = False) -> None:
        """Write what is open, every ``EVERY_SECONDS`` and only what has changed."""
        now = time.monotonic()
        if not is_last and now - self._kept_seconds < EVERY_SECONDS:
            return
        self._kept_seconds = now
        rows = {fold.run: _entry(fold) for fold in folds if _is_told(fold)}
        if rows != self._kept:
            self._kept = rows
            self._file.save(File(1, dict(rows)))


def _is_told(fold: RunFold) -> bool:
    return bool(fold.incidents.kept() or any(track.ending for track in fold.hangs.tracks))


def _entry(fold: RunFold) -> KeptRun:
    tracks = fold.hangs.tracks
    return KeptRun(
        tuple(key_of(p.follower.preamble) for p in fold.processes.values()),
        {key_of(t.process.follower.preamble): t.ending for t in tracks if t.ending},
        fold.incidents.kept(),
    )
