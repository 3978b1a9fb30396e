"""Failures of the agent's own work: a bad process, run, file or verdict affects only itself.

Each task runs inside its own ``guard``. A failure is counted, logged once with its traceback, and
shown next to the task until the task succeeds again. A task that has failed three times in a row
is blind: its results say nothing about the present.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from dfx_agent.base.log import OncePerPlace, place_of
from dfx_agent.base.text import full_sentence, joined, plain
from dfx_agent.snapshot import (
    Blindness,
    FaultPart,
    FaultRow,
    Standing,
    Verdict,
    VerdictKind,
    sentences,
)

BLIND_AFTER = 3

_MAX_OPEN = 1024
_MAX_MESSAGE = 200
_BLINDING = frozenset({"folder", "reading", "judgement", "rendering"})

_Key = tuple[FaultPart, str, str]


class Faults:
    """Failures of one agent. ``num_by_part`` are counters."""

    def __init__(self) -> None:
        self.num_by_part: Counter[FaultPart] = Counter()
        self._open: dict[_Key, FaultRow] = {}
        self._judged: dict[tuple[str, VerdictKind, str], float] = {}
        self._log = OncePerPlace("dfx_agent.agent")

    @contextmanager
    def guard(self, part: FaultPart, run: str = "", what: str = "") -> Iterator[None]:
        """Catch every exception in the block and record it as a failure of this task."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (counted, shown, logged)
            self._note((part, run, what), error)
        else:
            if self._open:
                self._open.pop((part, run, what), None)

    def judged(
        self,
        run: str,
        kind: VerdictKind,
        role: str,
        judge: Callable[[], Verdict | None],
        needs: str = "",
    ) -> Verdict | None:
        """The result of ``judge``; if it fails, a verdict that says so.

        ``needs``: another judgement of this run whose result it uses.
        """
        what = f"{kind} ({role})"
        missing = self.fault_in(run, needs) if needs else None
        if missing is None:
            with self.guard("judgement", run, what):
                verdict = judge()
                if verdict is not None:
                    self._judged[run, kind, role] = time.time()
                return verdict
        self._judged.setdefault((run, kind, role), time.time())
        return unjudged(kind, role, missing or self.fault_in(run, what))

    def judged_roles(
        self, run: str, kind: VerdictKind, judge: Callable[[], tuple[Verdict, ...]]
    ) -> tuple[Verdict, ...]:
        """Like ``judged``, for all roles at once."""
        with self.guard("judgement", run, kind):
            found = judge()
            self._judged |= {(run, kind, verdict.role): time.time() for verdict in found}
            return found
        return (unjudged(kind, "", self.fault_in(run, kind)),)

    def without_clear(self, run: str, verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
        """The same verdicts; none is "clear" while a part of the run cannot be read."""
        unread = next((row for row in self.rows(run) if row.part == "reading"), None)
        if unread is None:
            return tuple(verdicts)
        reason = sentences.NOT_READ(what=unread.what, reason=unread.message)
        return tuple(unclear(verdict, reason) for verdict in verdicts)

    def rows(self, run: str) -> tuple[FaultRow, ...]:
        """Current failures of this run; "" for failures that belong to no run."""
        return tuple(row for (_, of_run, _), row in self._open.items() if of_run == run)

    def fault_in(self, run: str, what: str) -> FaultRow | None:
        """The current failure of this judgement, if any."""
        return self._open.get(("judgement", run, what))

    def judged_seconds(self, run: str) -> dict[str, float]:
        """Kind of verdict -> Unix time at which it was last judged, in all its roles."""
        found: dict[str, float] = {}
        for (of_run, kind, _), seconds in self._judged.items():
            if of_run == run:
                found[kind] = min(seconds, found.get(kind, seconds))
        return found

    def blindness(self) -> Blindness | None:
        """The failure that has lasted longest, if one has lasted too long."""
        return _blindness(self._open.values())

    def blindness_of(self, run: str) -> Blindness | None:
        """Blindness of one run, or of the whole folder, which includes the run."""
        return _blindness((*self.rows(run), *self.rows("")))

    def forget(self, run: str) -> None:
        """Drop a run that is gone."""
        self._judged = {key: at for key, at in self._judged.items() if key[0] != run}
        self._open = {key: row for key, row in self._open.items() if key[1] != run}

    def _note(self, key: _Key, error: Exception) -> None:
        part, run, what = key
        self.num_by_part[part] += 1
        before = self._open.get(key)
        if before is None and len(self._open) >= _MAX_OPEN:
            return
        since, num = (before.since_seconds, before.num_times) if before else (time.time(), 0)
        text = f"{type(error).__name__} at {place_of(error)}: {error}"
        is_blind = part in _BLINDING and num + 1 >= BLIND_AFTER
        message = plain(text)[:_MAX_MESSAGE]
        self._open[key] = FaultRow(part, run, what, message, since, num + 1, is_blind)
        where = " of run ".join(filter(None, (what, plain(run))))
        self._log.error(f"{part} {where}".rstrip(), error)


def _blindness(rows: Iterable[FaultRow]) -> Blindness | None:
    blind = [row for row in rows if row.is_blind]
    first = min(blind, key=lambda row: row.since_seconds, default=None)
    if first is None:
        return None
    named = " of run ".join(filter(None, (first.what, first.run)))
    return Blindness(first.since_seconds, f"{first.part} {named}: {first.message}")


def unclear(verdict: Verdict, reason: str) -> Verdict:
    """The same verdict, but never "clear"."""
    if verdict.state != "clear":
        return verdict
    before = sentences.BEFORE(summary=full_sentence(verdict.summary)) if verdict.summary else ""
    summary = joined([reason, before])
    return replace(verdict, state="insufficient evidence", summary=summary)


def not_green(standing: Standing, reason: str) -> Standing:
    """The same standing if something was found; else why that is unknown."""
    if standing.state not in ("clear", "insufficient evidence"):
        return standing
    return Standing("insufficient evidence", full_sentence(reason))


def sighted(standing: Standing, rows: Iterable[FaultRow]) -> Standing:
    """The same standing, but not "clear" if the run could not be read, judged or shown."""
    row = next((row for row in rows if row.part in _BLINDING), None)
    if row is None:
        return standing
    return not_green(standing, sentences.FAULT(part=row.part, what=row.what, reason=row.message))


def facts_of(role: str) -> str:
    """Name of the task that reads the facts of a role's ranks."""
    return f"what the ranks do ({role})"


def unjudged(kind: VerdictKind, role: str, fault: FaultRow | None) -> Verdict:
    """A verdict that says that this could not be judged; never "clear"."""
    reason = fault.message if fault else "its judge failed"
    return Verdict(kind, "insufficient evidence", role, sentences.NOT_JUDGED(reason=reason))
