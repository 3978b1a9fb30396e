"""Totals of the processes of a folder, and how far each was read: for the next agent.

Without them it counts from the oldest record that is left in a ring: counters go back, and what its
predecessor had read is called lost. One file in the agent's own folder holds the living processes.
Boot, namespace, pid, start time and creation time of its segment identify a process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dfx_agent.agent.local_run import LocalRun
from dfx_agent.node.collectives.matching import MAX_BOOKS
from dfx_agent.node.collectives.waits import NUM_COUNTS
from dfx_agent.node.process import Process
from dfx_agent.node.segments.owned_files import open_existing, open_state, state_directory
from dfx_agent.node.time.account import Split
from dfx_agent.node.time.totals import CollectiveCounts, StoredTotals, Totals
from dfx_agent.snapshot import SegmentProblem
from dfx_agent.snapshot.document import Document, reason
from dfx_agent.wire import SegmentError
from dfx_agent.wire.segment import Preamble

NAME = "totals.json"
EVERY_SECONDS = 5.0
_MAX_BYTES = 64 << 20
_UNKEPT_SHARE = 1 / 4  # of a ring

Count = Annotated[int, Field(ge=0, strict=True)]
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
CountsRow = tuple[
    str,
    str,
    Annotated[tuple[Count | _Number, ...], Field(min_length=NUM_COUNTS, max_length=NUM_COUNTS)],
]


@dataclass(frozen=True)
class StoredProcess:
    """``StoredTotals`` as JSON has it. ``waits_ns`` are (kind, stage, ns), ``numbers`` as below."""

    position: Count
    until_ns: Count
    totals: TotalsRow
    collectives: Annotated[tuple[CountsRow, ...], Field(max_length=MAX_BOOKS)] = ()

    @classmethod
    def from_totals(cls, stored: StoredTotals) -> StoredProcess:
        row = TotalsRow.from_totals(stored.totals)
        return cls(stored.position, stored.until_ns, row, stored.collectives)

    def to_totals(self) -> StoredTotals:
        collectives = tuple(CollectiveCounts(*row) for row in self.collectives)
        return StoredTotals(self.position, self.until_ns, self.totals.totals(), collectives)


@dataclass(frozen=True)
class TotalsRow:
    """Nanoseconds by stage and wait, tokens and counters by name, and five numbers of records."""

    active_ns: Count
    idle_ns: Count
    stages_ns: dict[str, Count]
    waits_ns: tuple[tuple[str, str, Count], ...]
    tokens: dict[str, float]
    counters: dict[str, float]
    numbers: tuple[Count, Count, Count, Count, Count]

    @classmethod
    def from_totals(cls, totals: Totals) -> TotalsRow:
        t, split = totals, totals.split
        return cls(
            split.active_ns, split.idle_ns, dict(split.stages_ns),
            tuple((kind, stage, ns) for (kind, stage), ns in split.waits_ns.items()),
            t.tokens, t.counters,
            (t.num_records, t.num_lost, t.num_late, t.num_guest_drops, t.num_earlier),
        )  # fmt: skip

    def totals(self) -> Totals:
        split = Split(self.active_ns, self.idle_ns)
        split.stages_ns.update(self.stages_ns)
        split.waits_ns.update({(kind, stage): ns for kind, stage, ns in self.waits_ns})
        return Totals(split, dict(self.tokens), dict(self.counters), *self.numbers)


@dataclass(frozen=True)
class _File:
    """What is strange in one process's entry costs that process alone: it is checked later."""

    format: Literal[1]
    processes: dict[str, Any]


ENTRY = Document[StoredProcess](StoredProcess)
_FILE = Document[_File](_File)
_ENTRIES = Document[dict[str, StoredProcess]](dict[str, StoredProcess])


class TotalsFile:
    """The totals of one agent. No method raises: ``problem`` is the last failed read or write."""

    def __init__(self, directory: str) -> None:
        self._problems: dict[str, SegmentProblem] = {}  # "use" or "keep" -> the last one
        self._directory = directory
        self._path = f"{state_directory(directory)}/{NAME}"
        self._written_seconds = time.monotonic()
        self._positions: dict[Process, int] = {}  # when last stored
        self._entries = self._read()

    @property
    def problem(self) -> SegmentProblem | None:
        """What cannot be stored now, else what could not be used at the start."""
        return self._problems.get("keep") or self._problems.get("use")

    def pop(self, process: Process) -> StoredTotals | None:
        """What an earlier agent knew of this very process."""
        entry = self._entries.pop(key_of(process.follower.preamble), None)
        if entry is None:
            return None
        try:
            return ENTRY.loaded(entry).to_totals()
        except ValueError as error:
            self._note("use", error)
            return None

    def keep(self, folds: Iterable[LocalRun], *, is_last: bool = False) -> None:
        """Write the totals of the living processes, every ``EVERY_SECONDS``.

        Sooner if new records fill much of a ring: the records that a killed agent has not stored
        are then still in the ring for the next agent.
        """
        now = time.monotonic()
        living = {p: fold for fold in folds for p in fold.processes.values() if p.is_living}
        is_due = is_last or now - self._written_seconds >= EVERY_SECONDS
        if not is_due and not any(map(self._is_far, living)):
            return
        self._written_seconds = now
        self._positions = {p: p.follower.position for p in living}
        rows = {
            key_of(p.follower.preamble): p.stored_totals(tuple(fold.collectives.books(p)))
            for p, fold in living.items()
        }
        entries = {
            key: StoredProcess.from_totals(totals)
            for key, totals in rows.items()
            if totals is not None
        }
        try:
            data = b'{"format":1,"processes":%b}' % _ENTRIES.dumped(entries)
            with closing(open_state(self._directory)) as folder:
                folder.write(NAME, data)
            self._problems.pop("keep", None)
        except (OSError, ValueError, SegmentError) as error:
            self._note("keep", error)

    def _is_far(self, process: Process) -> bool:
        follower = process.follower
        num_new = follower.position - self._positions.get(process, 0)
        return num_new > _UNKEPT_SHARE * follower.preamble.num_records

    def _read(self) -> dict[str, Any]:
        try:
            with closing(open_existing(state_directory(self._directory))) as folder:
                return _FILE.read(folder.read(NAME, _MAX_BYTES)).processes
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._note("use", error)
            return {}

    def _note(self, verb: str, error: Exception) -> None:
        why = reason(error)[:80] or type(error).__name__
        message = f"cannot {verb} the totals in {self._path} ({why}): counters may go back"
        self._problems[verb] = SegmentProblem(self._path, "totals", message)


def key_of(preamble: Preamble) -> str:
    """Identifies a process on all machines that have used this folder."""
    parts = preamble.pid_namespace, preamble.pid, preamble.start_ticks, preamble.created_epoch_ns
    return f"{preamble.boot_id.hex()}:{':'.join(map(str, parts))}"
