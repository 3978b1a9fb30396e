"""Values of one step that several writers report at different times, put together again."""

from __future__ import annotations

from collections.abc import Iterator

from dfx_agent.node.logs.run import Notes, Record


class StepWindow:
    """Records by step, let go in the order of steps once they are too many to hold.

    ``add`` yields what is let go. A step before all that was let go is too late: left out, told.
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
            yield self._let_go()

    def rest(self) -> Iterator[Record]:
        """All that is held; the window then begins anew, for a job that was resumed."""
        while self._open:
            yield self._let_go()
        self._last = None

    def _is_full(self) -> bool:
        return self._num_values > self._max_values or len(self._open) > self._max_steps

    def _let_go(self) -> Record:
        step = self._last = min(self._open)
        record = self._open.pop(step)
        self._num_values -= len(record)
        record["step"] = step
        return record
