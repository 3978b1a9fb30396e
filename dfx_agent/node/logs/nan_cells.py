"""NaN in the cells of a table: exports write it where a run has no value, and a loss can be NaN.

NaN is a value if its column had values in each of the latest rows, and so had another signal that
has a value now. A row of another kind (an evaluation) shares no signal with the rows before it and
is not compared with them. If such rows have blank cells, missing values are blank, so NaN is a
value. Anywhere else NaN is a missing value, which is counted and noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from dfx_agent.catalogue.native.meaning import meaning_of

_TAKEN_AS = "NaN, taken as not reported"
_MAX_KEYS_LISTED = 8
_DENSE_ROWS = 12
# more of another kind in a row are what the table is about from there on
_MAX_OTHER_ROWS = 3


class NanCells:
    """Decides which NaN of a table are values; rows are counted from 0."""

    def __init__(self) -> None:
        # the latest row without a value, as its number among those of the usual kind
        self._missing_row: dict[str, int] = {}
        self._num_other = self._num_other_in_a_row = 0
        self._other_row = -1
        self._blank: set[str] = set()  # what rows of another kind leave blank

    def values(
        self, names: Sequence[str], blank: Iterable[str], record: Iterable[str], row: int
    ) -> list[str]:
        """Those of ``names``, NaN in this row, that are values; ``record`` has those with one."""
        blank, usual_row = list(blank), row - self._num_other
        if not self._shares_a_signal(record, usual_row):
            if names and all(n in self._blank and self._is_dense(n, usual_row) for n in names):
                self._missing_row.update(dict.fromkeys(blank, usual_row))
                return list(names)
            if self._is_passed_over(row):
                self._blank.update(blank)
                return []
        found = [name for name in names if self._is_dense(name, usual_row)] if names else []
        if found and not any(self._is_dense(n, usual_row) and meaning_of(n) for n in record):
            found = []
        for name in (*blank, *(name for name in names if name not in found)):
            self._missing_row[name] = usual_row
        return found

    def _shares_a_signal(self, record: Iterable[str], usual_row: int) -> bool:
        """Whether the row shares a signal with the previous row of the usual kind."""
        present = (name for name in record if self._missing_row.get(name, -1) < usual_row - 1)
        return usual_row < 1 or any(map(meaning_of, present))

    def _is_passed_over(self, row: int) -> bool:
        """A row of another kind, unless there are too many of them in a row."""
        is_in_a_row = row == self._other_row + 1
        self._num_other_in_a_row = 1 + (self._num_other_in_a_row if is_in_a_row else 0)
        if self._num_other_in_a_row > _MAX_OTHER_ROWS:
            return False
        self._other_row = row
        self._num_other += 1
        return True

    def _is_dense(self, name: str, row: int) -> bool:
        return row - self._missing_row.get(name, -1) > _DENSE_ROWS


def nan_lines(num_cells: Counter[str], is_known: Callable[[str], bool]) -> Iterator[str]:
    """One line per known key, 8 at most, and one line for all others together."""
    listed = [key for key in num_cells if is_known(key)][:_MAX_KEYS_LISTED]
    for key in listed:
        yield f"{key}: {_cells(num_cells[key])} {_TAKEN_AS}"
    others = [num for key, num in num_cells.items() if key not in listed]
    if others:
        keys = f"{len(others):,} {'other ' if listed else ''}key{'s' * (len(others) > 1)}"
        yield f"{keys}: {_cells(sum(others))} {_TAKEN_AS}"


def _cells(num: int) -> str:
    return f"{num:,} cells are" if num > 1 else "1 cell is"
