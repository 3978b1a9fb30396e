"""Rows at the end of a log in which no signal has a value: a writer died, the run went on."""

from __future__ import annotations

# fewer are a summary or an evaluation
_LEAST_ROWS = 5


class UnreportedTail:
    """Counts the rows behind the last one with a signal, and the longest gap before that."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._longest_gap = 0
        self._last_step: int | None = None

    def observe(self, step: int, *, has_signal: bool) -> None:
        if not has_signal:
            self.num_rows += 1
            return
        self._longest_gap = max(self._longest_gap, self.num_rows)
        self.num_rows, self._last_step = 0, step

    @property
    def lines(self) -> list[str]:
        """What to say of it; empty where signals were as rare before."""
        is_tail = self.num_rows >= _LEAST_ROWS and self.num_rows > 2 * self._longest_gap
        if self._last_step is None or not is_tail:
            return []
        judged = f"nothing is judged behind step {self._last_step}"
        return [f"the last {self.num_rows:,} rows have no value of a signal: {judged}"]
