"""Detects signals without a value at the end of a log, because a writer or a metric failed."""

from __future__ import annotations

from collections.abc import Iterator, KeysView
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dfx_agent.base.text import listed

# fewer rows may be a summary or an evaluation
_LEAST_ROWS = 5
# with fewer values, the logging interval of a signal is unknown
_LEAST_VALUES = 3
_WORDS = {
    "grad_norm": "gradient norm",
    "ref_kl": "reference KL",
    "truncation": "share of truncated responses",
}


@dataclass
class _Reported:
    """Values of one signal, with row and step of the latest one."""

    num_values: int = 0
    row: int = 0
    step: int = 0
    longest_gap: int = 0

    def observe(self, row: int, step: int, num_rows: int) -> None:
        """Record values in ``num_rows`` successive rows that end with ``row``."""
        if self.num_values:
            self.longest_gap = max(self.longest_gap, row - num_rows - self.row)
        self.num_values += num_rows
        self.row, self.step = row, step

    def has_stopped(self, row: int) -> bool:
        """Whether the gap since the latest value is longer than any gap before."""
        is_tail = _is_tail(row - self.row, self.longest_gap)
        return self.num_values >= _LEAST_VALUES and is_tail


class UnreportedTail:
    """Counts rows after the last row with a signal, and the longest gap before.

    For each signal, rows count in which at least one other signal has a value.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self._longest_gap = 0
        self._last_step: int | None = None
        self._num_reported = 0
        self._signals: dict[str, _Reported] = {}
        # signals of the latest rows, and the number of successive rows with the same signals
        self._names: KeysView[str] = {}.keys()
        self._num_same = 0

    def observe(self, step: int, signals: AbstractSet[str]) -> None:
        """Process the next row. ``signals``: names of signals with a value in it."""
        if not signals:
            self.num_rows += 1
            return
        if signals != self._names:
            self._count()
            self._names = dict.fromkeys(signals).keys()
        self._longest_gap = max(self._longest_gap, self.num_rows)
        self.num_rows, self._last_step = 0, step
        self._num_reported += 1
        self._num_same += 1

    @property
    def num_rows_of(self) -> dict[str, int]:
        """Signal -> rows in which it has a value."""
        self._count()
        return {name: reported.num_values for name, reported in self._signals.items()}

    def _count(self) -> None:
        if self._num_same and self._last_step is not None:
            for name in self._names:
                reported = self._signals.setdefault(name, _Reported())
                reported.observe(self._num_reported, self._last_step, self._num_same)
        self._num_same = 0

    @property
    def lines(self) -> list[str]:
        """Warnings; [] if signals were as rare before."""
        self._count()
        lines = list(self._stopped())
        if self._last_step is not None and _is_tail(self.num_rows, self._longest_gap):
            judged = f"nothing is judged after step {self._last_step}"
            lines.append(f"the last {self.num_rows:,} rows have no value of a signal: {judged}")
        return lines

    def _stopped(self) -> Iterator[str]:
        """One line for all signals that stopped at the same step."""
        names_by_step: dict[int, list[str]] = {}
        for signal, reported in self._signals.items():
            if reported.has_stopped(self._num_reported):
                name = _WORDS.get(signal, signal.replace("_", " ").replace(" kl", " KL"))
                names_by_step.setdefault(reported.step, []).append(name)
        for step, names in sorted(names_by_step.items()):
            have = "has" if len(names) == 1 else "have"
            yield f"{listed(names)} {have} no value after step {step}"


def _is_tail(num_rows: int, longest_gap: int) -> bool:
    return num_rows >= _LEAST_ROWS and num_rows > 2 * longest_gap
