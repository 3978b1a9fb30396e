"""Open incidents of the runs of a folder, for the next agent: id and begin outlive a restart.

One file in the agent's own folder. A run of the same name is the same run while one of its
processes still lives: a job that is started again under that name begins with nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from math import isfinite
from typing import Any

from dfx_agent.agent.fold import RunFold
from dfx_agent.agent.incidents import KeptIncident
from dfx_agent.agent.kept_document import KeptDocument
from dfx_agent.agent.totals_file import key_of
from dfx_agent.snapshot import SegmentProblem

NAME = "incidents.json"
EVERY_SECONDS = 5.0
_FORMAT = 1

_Kept = tuple[frozenset[str], tuple[KeptIncident, ...]]  # processes of the run, its incidents


class IncidentsFile:
    """Of one agent. Nothing here raises; what cannot be read or kept is a problem."""

    def __init__(self, directory: str) -> None:
        self._file = KeptDocument(directory, NAME)
        self._found = _runs(self._file.load())
        self._kept: dict[str, Any] | None = None  # as it was written
        self._kept_seconds = time.monotonic()

    @property
    def problem(self) -> SegmentProblem | None:
        if not self._file.problem:
            return None
        message = f"{self._file.problem}: incidents begin anew with each agent"
        return SegmentProblem(NAME, "incidents", message)

    def resume(self, fold: RunFold) -> None:
        """Give the run what was open in it; once, at its first reading."""
        entry = self._found.pop(fold.run, None)
        if entry is None:
            return
        processes, incidents = entry
        if not processes.isdisjoint(key_of(p.follower.preamble) for p in fold.processes.values()):
            fold.incidents.resume(incidents)

    def keep(self, folds: Iterable[RunFold], *, is_last: bool = False) -> None:
        """Write what is open, every ``EVERY_SECONDS`` and only what has changed."""
        now = time.monotonic()
        if not is_last and now - self._kept_seconds < EVERY_SECONDS:
            return
        self._kept_seconds = now
        rows = {fold.run: _entry(fold) for fold in folds if fold.incidents.kept()}
        if rows != self._kept:
            self._kept = rows
            self._file.save({"format": _FORMAT, "runs": rows})


def _entry(fold: RunFold) -> dict[str, Any]:
    return {
        "processes": [key_of(p.follower.preamble) for p in fold.processes.values()],
        "open": [asdict(incident) for incident in fold.incidents.kept()],
    }


def _runs(document: Any) -> dict[str, _Kept]:
    """What was kept, by run; nothing of a run that is not whole."""
    found: dict[str, _Kept] = {}
    if not isinstance(document, Mapping) or document.get("format") != _FORMAT:
        return found
    runs = document.get("runs")
    for run, entry in runs.items() if isinstance(runs, Mapping) else ():
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            found[run] = frozenset(entry["processes"]), tuple(map(_incident, entry["open"]))
    return found


def _incident(fields: Mapping[str, Any]) -> KeptIncident:
    step = fields["step"]
    kind, role, cause, summary = (str(fields[key]) for key in ("kind", "role", "cause", "summary"))
    since, seen = float(fields["since_seconds"]), float(fields["seen_seconds"])
    if not isfinite(since + seen):
        raise ValueError("an incident without a begin")
    ranks = tuple(map(str, fields["ranks"]))
    return KeptIncident(
        str(fields["id"]), kind, role, ranks, cause, since, None if step is None else int(step),
        seen, summary,
    )  # fmt: skip
