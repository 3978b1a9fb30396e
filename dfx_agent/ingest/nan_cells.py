"""NaN in the cells of a table: exports write it where a run has no value, and a loss can be NaN.

It is a value where its column had one in each of the newest rows, and so had another signal that
has one now: a row of another kind (an evaluation) lacks all of them. Anywhere else it is no value,
which is counted and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from dfx_agent.catalogue.native.meaning import meaning_of

_TAKEN_AS = "NaN, taken as not told"
_MAX_KEYS_TOLD = 8
_DENSE_ROWS = 12


class NanCells:
    """Which NaN of a table are values; rows are counted from 0."""

    def __init__(self) -> None:
        self._missing_row: dict[str, int] = {}  # the newest row without a value

    def values(
        self, names: Sequence[str], blank: Iterable[str], record: Iterable[str], row: int
    ) -> list[str]:
        """Those of ``names``, NaN in this row, that are values; ``record`` has those with one."""
        found = [name for name in names if self._is_dense(name, row)] if names else []
        if found and not any(self._is_dense(n, row) and meaning_of(n) for n in record):
            found = []
        for name in (*blank, *(name for name in names if name not in found)):
            self._missing_row[name] = row
        return found

    def _is_dense(self, name: str, row: int) -> bool:
        return row - self._missing_row.get(name, -1) > _DENSE_ROWS


def nan_lines(num_cells: Counter[str], is_known: Callable[[str], bool]) -> Iterator[str]:
    """One line for each key that is known, 8 at most; one for all others together."""
    known = [key for key in num_cells if is_known(key)][:_MAX_KEYS_TOLD]
    for key in known:
        yield f"{key}: {_cells(num_cells[key])} {_TAKEN_AS}"
    others = [num for key, num in num_cells.items() if key not in known]
    if others:
        keys = f"{len(others):,} {'other ' if known else ''}key{'s' * (len(others) > 1)}"
        yield f"{keys}: {_cells(sum(others))} {_TAKEN_AS}"


def _cells(num: int) -> str:
    return f"{num:,} cells are" if num > 1 else "1 cell is"
