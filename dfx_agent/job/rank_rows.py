"""Builds the row of one rank from facts: on a node, on a hub, and for a process without a guest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from dfx_agent.facts.measurements import RankDetails, RankTotals
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.seat import LOG_ROLE, Seat
from dfx_agent.snapshot import LedgerRow, OpenSpan, RankRow, SpanKind, TimeSplit

_TOTALS = tuple(field.name for field in fields(RankTotals) if field.name != "process")
_DETAILS = tuple(field.name for field in fields(RankDetails))
_NO_DETAILS = {name: getattr(RankDetails(), name) for name in _DETAILS}


class RankInput(NamedTuple):
    """What is known about one rank. Facts that are None did not arrive, or stay on the node."""

    seat: Seat
    node: str
    """Name of its node in the job."""
    apart_seconds: float = 0.0
    """Offset to add to Unix times of the node."""
    is_connected: bool = True
    facts: RankFacts | None = None
    totals: RankTotals | None = None
    details: RankDetails | None = None
    last: TimeSplit | None = None
    """Its share of the latest step that the job shows."""
    place: Mapping[str, int] = {}
    ledger: tuple[LedgerRow, ...] = ()


def rank_row(rank: RankInput) -> RankRow:
    """The row of one rank. On a disconnected node: the last report, with state `unknown`."""
    seat = rank.seat
    totals = rank.totals or RankTotals(process=seat.id, num_lost_records=seat.num_lost_records)
    details = rank.details
    is_outside = details is not None and details.outside is not None
    return RankRow(
        **_from_facts(rank),
        **{name: getattr(totals, name) for name in _TOTALS},
        **_from_details(rank),
        source="passive" if seat.role == LOG_ROLE or is_outside else "guest",
        place=rank.place,
        ledger=rank.ledger,
        is_full=details is not None,
    )


def _from_facts(rank: RankInput) -> dict[str, Any]:
    """Fields of RankRow that every report of the node has."""
    seat, facts, apart_seconds = rank.seat, rank.facts, rank.apart_seconds
    is_unknown = seat.is_living and not rank.is_connected
    return {
        "role": seat.role,
        "rank": seat.label,
        "local_rank": _count_or_none(seat.local_rank),
        "world_size": _count_or_none(seat.world_size),
        "node": rank.node,
        "pid": seat.pid,
        "attempt": seat.attempt,
        "state": "unknown" if is_unknown else seat.state,
        "begin_seconds": seat.created_ns / 1e9 + apart_seconds,
        "last_event_seconds": _last_event(facts, apart_seconds),
        "step": facts.step if facts else None,
        "step_begin_seconds": _step_begin(facts, apart_seconds),
        "inflight": tuple(_open_spans(facts, apart_seconds)) if facts and not is_unknown else (),
        "queue_depth": facts.queue_depth if facts else {},
        "is_suspended": facts.is_suspended if facts else False,
    }


def _from_details(rank: RankInput) -> dict[str, Any]:
    """Fields of RankRow that stay on the node; a hub knows only the last step that it shows."""
    details = rank.details
    if details is None:
        return {**_NO_DETAILS, "last": rank.last}
    return {name: getattr(details, name) for name in _DETAILS}


def _open_spans(facts: RankFacts, apart_seconds: float) -> Iterator[OpenSpan]:
    """Open spans when the node read the rank. ``apart_seconds``: shift to local Unix time."""
    sequences = {f"{a.operation}@{a.group}": a.sequence for a in facts.arrivals}
    stages = set(facts.stages)
    now_ns = facts.now_ns if facts.is_living else facts.last_event_ns or 0
    for name, begin_ns in zip(facts.open_spans, facts.opened_ns, strict=False):
        kind: SpanKind = "collective" if name in sequences else "wait"
        kind = "stage" if name in stages else kind
        yield OpenSpan(
            kind=kind,
            name=name,
            begin_seconds=facts.epoch_seconds(begin_ns) + apart_seconds,
            elapsed_seconds=max(0.0, (now_ns - begin_ns) / 1e9),
            step=facts.step if kind != "collective" else None,
            sequence=sequences.get(name),
        )


def _step_begin(facts: RankFacts | None, apart_seconds: float) -> float | None:
    if facts is None or facts.step is None or facts.step_seconds is None:
        return None
    return facts.now_seconds - facts.step_seconds + apart_seconds


def _last_event(facts: RankFacts | None, apart_seconds: float) -> float | None:
    if facts is None or facts.last_event_ns is None:
        return None
    return facts.epoch_seconds(facts.last_event_ns) + apart_seconds


def _count_or_none(value: int) -> int | None:
    return None if value < 0 else value
