"""Open incidents of the runs of a folder, for the next agent: id and begin outlive a restart.

With them how processes have ended: who comes later sees that they are gone, not when and by what.

One file in the agent's own folder. A run of the same name is the same run while one of its
processes still lives: a job that is started again under that name begins with nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from math import isfinite
from typing import Any, NamedTuple

from dfx_agent.agent.incidents import KeptIncident
from dfx_agent.agent.kept.document import KeptDocument
from dfx_agent.agent.kept.totals import key_of
from dfx_agent.agent.run import RunFold
from dfx_agent.facts.exit_status import ExitStatus
from dfx_agent.node.track import Ending
from dfx_agent.snapshot import SegmentProblem

NAME = "incidents.json"
EVERY_SECONDS = 5.0
_FORMAT = 1


class _Kept(NamedTuple):
    """Of one run: its processes, how those of them ended that have, and what was open."""

    processes: frozenset[str]
    endings: dict[str, Ending]
    incidents: tuple[KeptIncident, ...]


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
        present = {key_of(p.follower.preamble): p for p in fold.processes.values()}
        if entry.processes.isdisjoint(present):
            return
        fold.incidents.resume(entry.incidents, time.time())
        for key, ending in entry.endings.items():
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
            self._file.save({"format": _FORMAT, "runs": rows})


def _is_told(fold: RunFold) -> bool:
    return bool(fold.incidents.kept() or any(track.ending for track in fold.hangs.tracks))


def _entry(fold: RunFold) -> dict[str, Any]:
    return {
        "processes": [key_of(p.follower.preamble) for p in fold.processes.values()],
        "ended": {key_of(t.process.follower.preamble): t.ending
                  for t in fold.hangs.tracks if t.ending},
        "open": [asdict(incident) for incident in fold.incidents.kept()],
    }  # fmt: skip


def _runs(document: Any) -> dict[str, _Kept]:
    """What was kept, by run; nothing of a run that is not whole."""
    found: dict[str, _Kept] = {}
    if not isinstance(document, Mapping) or document.get("format") != _FORMAT:
        return found
    runs = document.get("runs")
    for run, entry in runs.items() if isinstance(runs, Mapping) else ():
        with suppress(AttributeError, KeyError, TypeError, ValueError, OverflowError):
            endings = {key: _ending(fields) for key, fields in entry["ended"].items()}
            incidents = tuple(map(_incident, entry["open"]))
            found[run] = _Kept(frozenset(entry["processes"]), endings, incidents)
    return found


def _ending(fields: Any) -> Ending:
    gone_ns, is_outlived, status, was_oom_killed = fields
    code, number = status or (None, None)
    known = None if code is None and number is None else ExitStatus(_number(code), _number(number))
    return Ending(
        int(gone_ns), None if is_outlived is None else bool(is_outlived), known,
        bool(was_oom_killed),
    )  # fmt: skip


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _incident(fields: Mapping[str, Any]) -> KeptIncident:
    step = fields["step"]
    kind, role, cause, summary = (str(fields[key]) for key in ("kind", "role", "cause", "summary"))
    since, seen = float(fields["since_seconds"]), float(fields["seen_seconds"])
    if not isfinite(since + seen):
        raise ValueError("an incident without a begin")
    ranks = tuple(map(str, fields["ranks"]))
    return KeptIncident(
        str(fields["id"]), kind, role, ranks, cause, since, None if step is None else int(step),
        seen, summary, is_unsure=fields.get("is_unsure") is True,
        is_event=fields.get("is_event") is not False,
    )  # fmt: skip
