"""Joins values of one step that several writers report at different times."""

from __future__ import annotations

from collections.abc import Iterator

from dfx_agent.node.logs.run import Notes, Record


class StepWindow:
    """Records by step, returned in the order of steps when too many are stored.

    ``add`` yields these records. A step before the last returned one is too late, left out and
    noted.
    """

    def __init__(self, notes: Notes, max_values: int, max_steps: int) -> None:
        self._notes = notes
        self._max_values, self._max_steps = max_values, max_steps
        self._open: dict[int, Record] = {}
        self._num_values = 0
        self._last: int | None = None

    def add(self, step: int, values: Record) -> Iterator[Record]:
        if self._last is not None and step <= self._last:
            self._notes.left_out("came too late: left out", f"step {step}")
            return
        record = self._open.setdefault(step, {})
        before = len(record)
        record.update(values)
        self._num_values += len(record) - before
        while len(self._open) > 1 and self._is_full():
            yield self._pop_oldest()

    def rest(self) -> Iterator[Record]:
        """All stored records; the window is empty then, for a job that was resumed."""
        while self._open:
            yield self._pop_oldest()
        self._last = None

    def _is_full(self) -> bool:
        return self._num_values > self._max_values or len(self._open) > self._max_steps

    def _pop_oldest(self) -> Record:
        step = self._last = min(self._open)
        record = self._open.pop(step)
        self._num_values -= len(record)
        record["step"] = step
        return record
