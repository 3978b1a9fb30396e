"""Contract 2: what is no longer shown one by one: a part of ``snapshot``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DroppedRanks:
    """Ended processes of one role that were let go: the newest stay in ``RunRow.ranks``.

    ``num_ranks`` only grows. Records are those of processes whose totals are in no row of a rank.
    """

    role: str
    num_ranks: int
    num_records: int
    num_lost_records: int
