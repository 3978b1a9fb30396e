"""Timelines in pages: the size of an answer is bounded for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from fastapi import HTTPException
from pydantic import BaseModel, Field

from dfx_agent.snapshot import Source, TimelineRow
from dfx_agent.snapshot.document import Document
from dfx_agent.web.visible_ranks import RankKey, key_of

# an answer ends with the rank that reaches it: 1 MiB holds what is left, if that rank is no giant
FULL_BYTES = 3 << 18
MAX_RANKS = 128
_RANKS_AT_ONCE = 8

_encode = Document[tuple[TimelineRow, ...]](tuple[TimelineRow, ...]).dumped


@dataclass(frozen=True, slots=True)
class TimelineWindow:
    """Steps, ranks (empty: all) and time range; ``after``: where the previous page ended.

    Pieces that end by ``begin_seconds`` or begin at ``end_seconds`` (Unix time) are left out.
    """

    num_steps: int
    ranks: Sequence[RankKey] = ()
    begin_seconds: float = -inf
    end_seconds: float = inf
    after: RankKey | None = None


class TimelineQuery(BaseModel):
    """The same as a query; ranks are `ROLE/RANK`, times Unix seconds."""

    steps: int = Field(12, ge=1, le=200)
    rank: list[str] = Field([], max_length=MAX_RANKS)
    begin: float | None = None
    end: float | None = None
    after: str | None = None

    def window(self) -> TimelineWindow:
        begin = -inf if self.begin is None else self.begin
        end = inf if self.end is None else self.end
        after = None if self.after is None else ranks_named([self.after])[0]
        return TimelineWindow(self.steps, ranks_named(self.rank), begin, end, after)


def ranks_named(names: Iterable[str]) -> tuple[RankKey, ...]:
    """Parse `ROLE/RANK`; a role may contain a slash."""
    parts = (name.rpartition("/") for name in names)
    return tuple((role, rank) for role, _, rank in parts)


def timeline_page(source: Source, run: str, window: TimelineWindow) -> tuple[bytes, RankKey | None]:
    """(rows as JSON, the last rank in it if there are more). KeyError on an unknown run."""
    keys = _keys(source, run, window)
    found: list[bytes] = []
    num_bytes = 0
    for number, (key, rows) in enumerate(_rows(source, run, keys, window), start=1):
        if rows:
            found.append(_encode(rows)[1:-1])
            num_bytes += len(found[-1])
        if num_bytes >= FULL_BYTES and number < len(keys):
            return b"[%b]" % b",".join(found), key
    return b"[%b]" % b",".join(found), None


def _keys(source: Source, run: str, window: TimelineWindow) -> list[RankKey]:
    """The ranks of this page and the following ones, in the requested order, or that of the run."""
    keys = list(window.ranks) or _ranks_of(source, run)
    if window.after is None:
        return keys
    if window.after not in keys:
        raise HTTPException(410, "the ranks have changed: ask again, without `after`")
    return keys[keys.index(window.after) + 1 :]


def _ranks_of(source: Source, run: str) -> list[RankKey]:
    found = next((row for row in source.snapshot().runs if row.run == run), None)
    if found is None:  # unknown, or newer than the snapshot
        return list(dict.fromkeys((row.role, row.rank) for row in source.timeline(run, 1)))
    return [key_of(row) for row in found.ranks if row.source == "guest"]


def _rows(
    source: Source, run: str, keys: Sequence[RankKey], window: TimelineWindow
) -> Iterator[tuple[RankKey, tuple[TimelineRow, ...]]]:
    """Some ranks at a time, so that little is built that is not sent."""
    for begin in range(0, len(keys), _RANKS_AT_ONCE):
        some = keys[begin : begin + _RANKS_AT_ONCE]
        rows = source.timeline(run, window.num_steps, frozenset(some))
        for key in some:
            of_rank = (_cut(row, window) for row in rows if (row.role, row.rank) == key)
            yield key, tuple(row for row in of_rank if row is not None)


def _cut(row: TimelineRow, window: TimelineWindow) -> TimelineRow | None:
    """None for a step outside the window."""
    begin, end = window.begin_seconds, window.end_seconds
    if row.begin_seconds >= end or (row.end_seconds is not None and row.end_seconds <= begin):
        return None
    pieces = (p for p in row.pieces if p.end_seconds > begin and p.begin_seconds < end)
    return replace(row, pieces=tuple(pieces))
