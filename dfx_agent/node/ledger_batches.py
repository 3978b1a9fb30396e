"""Assembles the shape-ledger records of a run into batches.

The guest writes one batch that crosses a worker boundary as several 64-byte records. Records can be
overwritten before the agent reads them, so a batch may stay incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dfx_agent.facts.ledger import Crossing, LedgerNews, Progress
from dfx_agent.node.process import Process
from dfx_agent.node.segments.records import LedgerRecord
from dfx_agent.wire.records import LEDGER_FIELDS, NO_STEP

_MAX_INCOMPLETE = 32

_RankKey = tuple[str, str]  # role, label


class LedgerAssembler:
    """Collects the ledger records of all processes of one run; call ``poll`` after each reading."""

    def __init__(self) -> None:
        self._incomplete: dict[tuple[Process, int], list[LedgerRecord]] = {}
        # the process and the number of its lost records at the last poll
        self._last_state: dict[_RankKey, tuple[Process, int]] = {}

    def poll(self, process: Process) -> LedgerNews | None:
        """Batches completed since the last poll of this process; None if nothing changed."""
        if not process.ledger and not self._last_state:
            return None
        rank_key, state = _rank_key(process), (process, process.follower.num_lost)
        if not process.ledger and self._last_state.get(rank_key, state) == state:
            return None
        self._last_state[rank_key] = state
        batches = tuple(filter(None, (self._add(process, r) for r in process.ledger)))
        num_over = len(self._incomplete) - _MAX_INCOMPLETE
        incomplete_steps = self._drop(list(self._incomplete)[: max(0, num_over)])
        steps = tuple(_step(record) for record in process.ledger)
        return LedgerNews(process.id, state[1], steps, batches, incomplete_steps)

    def progress(self, processes: Iterable[Process]) -> Iterator[Progress]:
        """Progress of each process that has written a batch. ``processes``: now in the run."""
        present = set(processes) if self._last_state else set()
        for process, _ in self._last_state.values():
            yield Progress(process.id, process.latest_step, process.is_living, process in present)

    def remove_process(self, process: Process) -> tuple[int | None, ...]:
        """Drop an exited process. Returns the steps of its batches that stayed incomplete."""
        self._last_state.pop(_rank_key(process), None)
        return self._drop([key for key in self._incomplete if key[0] is process])

    def _add(self, process: Process, record: LedgerRecord) -> Crossing | None:
        key = process, record.crossing
        records = self._incomplete.setdefault(key, [])
        records.append(record)
        if len(records) < record.num_records:
            return None
        return _crossing(self._incomplete.pop(key))

    def _drop(self, keys: Iterable[tuple[Process, int]]) -> tuple[int | None, ...]:
        """Drop these incomplete batches. Returns their steps."""
        return tuple(_step(self._incomplete.pop(key)[0]) for key in keys)


def _rank_key(process: Process) -> _RankKey:
    return process.registered_as.role, process.label


def _step(record: LedgerRecord) -> int | None:
    return None if record.step == NO_STEP else record.step


def _crossing(records: Sequence[LedgerRecord]) -> Crossing:
    first = records[0]
    fields = {
        (LEDGER_FIELDS[r.field], r.name.partition("/")[2]): r.value
        for r in records
        if r.field < len(LEDGER_FIELDS)
    }
    return Crossing(first.name.partition("/")[0], _step(first), first.time_ns, fields)
