"""Requests the full rows of the ranks that a page shows from their nodes, and caches them.

A hub has only the facts of every rank that judges need. All other data stays on the node until a
page shows the rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from dfx_agent.snapshot import RankRow

REFRESH_SECONDS = 1.0
_MAX_AGE_SECONDS = 10.0

Rank = tuple[str, str]


class _Cached(NamedTuple):
    """Both times are monotonic; ``row`` is None where its node has not answered."""

    row: RankRow | None
    row_seconds: float
    requested_seconds: float


class ShownRanks:
    """``request``: (run, ranks) -> their full rows, of the nodes that answer in time."""

    def __init__(self, request: Callable[[str, Collection[Rank]], Iterable[RankRow]]) -> None:
        self._request = request
        self._cache: dict[tuple[str, Rank], _Cached] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "dfx-ranks")
        self._is_refreshing = False

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def full(self, run: str, rows: Collection[RankRow]) -> tuple[RankRow, ...]:
        """The same rows, full where their nodes have answered in the last 10 s.

        Waits for nodes only when a rank is shown for the first time, up to 3 s.
        """
        ranks = [(row.role, row.rank) for row in rows]
        cached = self._cached(run, ranks)
        new = [rank for rank in ranks if rank not in cached]
        if new:
            self._refresh(run, new)
        due = time.monotonic() - REFRESH_SECONDS
        old = [rank for rank, entry in cached.items() if entry.requested_seconds < due]
        if old and not self._is_refreshing:
            self._is_refreshing = True
            self._pool.submit(self._refresh_later, run, old)
        cached = self._cached(run, ranks)
        oldest = time.monotonic() - _MAX_AGE_SECONDS
        full = {r: c.row for r, c in cached.items() if c.row and c.row_seconds >= oldest}
        return tuple(_merged(row, full.get((row.role, row.rank))) for row in rows)

    def _cached(self, run: str, ranks: Iterable[Rank]) -> Mapping[Rank, _Cached]:
        with self._lock:
            return {rank: self._cache[run, rank] for rank in ranks if (run, rank) in self._cache}

    def _refresh_later(self, run: str, ranks: Collection[Rank]) -> None:
        try:
            self._refresh(run, ranks)
        finally:
            self._is_refreshing = False

    def _refresh(self, run: str, ranks: Collection[Rank]) -> None:
        now = time.monotonic()
        try:
            rows = {(row.role, row.rank): row for row in self._request(run, ranks)}
        except KeyError:  # the run has ended meanwhile
            rows = {}
        with self._lock:
            recent = {key: c for key, c in self._cache.items() if _is_recent(c, now)}
            for rank in ranks:
                before = recent.get((run, rank), _Cached(None, now, now))
                row = rows.get(rank)
                recent[run, rank] = (
                    before._replace(requested_seconds=now)
                    if row is None
                    else _Cached(row, now, now)
                )
            self._cache = recent


def _is_recent(cached: _Cached, now: float) -> bool:
    """Whether a page has shown this rank lately."""
    return now - cached.requested_seconds < _MAX_AGE_SECONDS


def _merged(row: RankRow, full: RankRow | None) -> RankRow:
    """``full`` of this very process, in the state and at the place that the hub knows."""
    if full is None or full.pid != row.pid or row.state == "unknown":
        return row
    return replace(full, node=row.node, place=row.place, state=row.state)
