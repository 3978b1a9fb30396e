"""Records of the shape ledger put together: whole crossings, and who shows any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dfx_agent.facts.ledger import Crossing, LedgerNews, Progress
from dfx_agent.node.process import Process
from dfx_agent.node.segments.records import LedgerRecord
from dfx_agent.wire.records import LEDGER_FIELDS, NO_STEP

_MAX_PARTIAL = 32

_Place = tuple[str, str]  # role, label


class Crossings:
    """All processes of one run; ``news`` after each reading of one."""

    def __init__(self) -> None:
        self._partial: dict[tuple[Process, int], list[LedgerRecord]] = {}
        self._showing: dict[_Place, tuple[Process, int]] = {}  # with the records it had lost

    def news(self, process: Process) -> LedgerNews | None:
        """None where the reading brought nothing of it."""
        if not process.ledger and not self._showing:
            return None
        place, now = _place(process), (process, process.follower.num_lost)
        if not process.ledger and self._showing.get(place, now) == now:
            return None
        self._showing[place] = now
        crossings = tuple(filter(None, (self._add(process, r) for r in process.ledger)))
        num_over = len(self._partial) - _MAX_PARTIAL
        given_up = self._give_up(list(self._partial)[: max(0, num_over)])
        steps = tuple(_step(record) for record in process.ledger)
        return LedgerNews(process.id, now[1], steps, crossings, given_up)

    def progress(self, processes: Iterable[Process]) -> Iterator[Progress]:
        """Of those that have shown a batch; ``processes`` are now of the run."""
        present = set(processes) if self._showing else set()
        for process, _ in self._showing.values():
            yield Progress(process.id, process.told_step, process.is_living, process in present)

    def let_go(self, process: Process) -> tuple[int | None, ...]:
        """It ended long ago: steps of what it never showed to the end."""
        self._showing.pop(_place(process), None)
        return self._give_up([key for key in self._partial if key[0] is process])

    def _add(self, process: Process, record: LedgerRecord) -> Crossing | None:
        key = process, record.crossing
        records = self._partial.setdefault(key, [])
        records.append(record)
        if len(records) < record.num_records:
            return None
        return _crossing(self._partial.pop(key))

    def _give_up(self, keys: Iterable[tuple[Process, int]]) -> tuple[int | None, ...]:
        """Records of these crossings were lost."""
        return tuple(_step(self._partial.pop(key)[0]) for key in keys)


def _place(process: Process) -> _Place:
    return process.filed_as.role, process.label


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
