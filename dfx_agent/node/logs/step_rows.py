"""One row for each step: parts that come late join it, and attempts stay apart.

Trainers write several records a step (rollout, train, evaluation), also a few steps late. A record
joins the row of its step when it adds keys and contradicts none. A step that falls back and rises
again from there is a new attempt: its rows follow those of the attempt before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dfx_agent.catalogue.native.meaning import meaning_of
from dfx_agent.node.logs.run import Notes, Record, Row

# parts of one step are so many rows apart at most
_MAX_ROWS_HELD = 64
# so many rows that rise from a step that fell back are a new attempt
_LEAST_ROWS_OF_ATTEMPT = 2
# a step that begins again while one of them rises is counted on
_EPOCHS = ("epoch", "train/epoch", "Epoch")
_CLOCK = re.compile(
    r"(?:^|[/._ ])(?:wall_?)?(?:time|timestamp|runtime|ts|unix|date|seed|pid|created)(?:$|[/._ ])",
    re.IGNORECASE,
)


def is_clock(key: str) -> bool:
    """Whether this key says when a record was written."""
    return _CLOCK.search(key) is not None


class StepMerger:
    """Holds the latest rows, so that records of one step that come late still join its row."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._rows: list[Row] = []
        self._fallen: list[Row] = []  # steps before the latest one, until it is clear why
        self._yielded: int | None = None  # the latest step of this attempt that is not held

    def add(self, step: int, record: Record) -> Iterator[Row]:
        rows = self._fallen or self._rows
        if rows and rows[-1][0] == step:
            if _contradicts(record, rows[-1][1]):
                what = "is reported again with other values: the last are read"
                self._notes.left_out(what, f"step {step}")
            rows[-1][1].update(record)
        elif self._fallen:
            yield from self._add_after_fall(step, record)
        elif not rows or step > rows[-1][0]:
            rows.append((step, record))
            if len(rows) > _MAX_ROWS_HELD:
                self._yielded = rows[0][0]
                yield rows.pop(0)
        elif not self._join(step, record):
            self._fallen = [(step, record)]

    def rest(self) -> Iterator[Row]:
        yield from self._rows
        yield from self._fallen
        self._rows, self._fallen, self._yielded = [], [], None

    def _join(self, step: int, record: Record) -> bool:
        """Whether the record is a late part of a row that is held."""
        row = next((row for row in reversed(self._rows) if row[0] == step), None)
        if row is None or not _is_part(record, row[1]):
            return False
        row[1].update(record)
        return True

    def _add_after_fall(self, step: int, record: Record) -> Iterator[Row]:
        is_rise = step > self._fallen[-1][0]
        if is_rise and len(self._fallen) < _LEAST_ROWS_OF_ATTEMPT and step > self._rows[-1][0]:
            self._insert_late(*self._fallen.pop())
            yield from self.add(step, record)
            return
        if is_rise and len(self._fallen) < _LEAST_ROWS_OF_ATTEMPT:
            self._fallen.append((step, record))
            return
        yield from self._rows
        self._rows, self._fallen, self._yielded = self._fallen, [], None
        yield from self.add(step, record)

    def _insert_late(self, step: int, record: Record) -> None:
        """A single row out of order is no attempt."""
        place = sum(held < step for held, _ in self._rows)
        if self._yielded is not None and step <= self._yielded:
            self._notes.left_out("came too late: left out", f"step {step}")
        elif self._rows[place][0] == step:
            self._notes.add("is reported again behind later ones: left out", f"step {step}")
        else:
            self._notes.add("came late: sorted in", f"step {step}")
            self._rows.insert(place, (step, record))


def _is_part(record: Record, row: Record) -> bool:
    """Whether the record adds to the row, and contradicts nothing but when it was written."""
    shared = row.keys() & record.keys()
    return len(shared) < len(record) and all(
        row[key] == record[key] or is_clock(key) for key in shared
    )


def _contradicts(record: Record, row: Record) -> bool:
    """Whether a signal has another value than before: another run, another rank, a part of it."""
    return any(
        row[key] != record[key] and meaning_of(key) is not None
        for key in row.keys() & record.keys()
    )


class EpochOffsets:
    """Counts on where a loop counts its steps from 0 again in each epoch."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._offset = 0
        self._before: int | None = None
        self._epochs: dict[str, float] = {}

    def counted_on(self, step: int, record: Record) -> int:
        before, self._before = self._before, step
        if before is not None and step < before and self._has_risen(record):
            self._offset += before + 1 - step
            self._notes.add("the step begins again with each epoch: counted on")
        elif before is not None and step < before:
            self._offset = 0
        for name in _EPOCHS:
            if name in record:
                self._epochs[name] = record[name]
        return step + self._offset

    def _has_risen(self, record: Record) -> bool:
        """Whether a whole epoch has passed since the record before."""
        risen = (name for name in _EPOCHS if name in record and name in self._epochs)
        return any(record[name] >= self._epochs[name] + 1 for name in risen)
