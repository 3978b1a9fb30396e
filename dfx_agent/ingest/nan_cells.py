"""NaN in the cells of a table: exports write it where a run has no value, and a loss can be NaN.

Nothing tells the two apart, so it is no value; it is counted and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

_TAKEN_AS = "NaN, taken as not told"
_MAX_KEYS_TOLD = 8


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
