"""Rounds facts before they are sent to a hub: random trailing digits do not compress.

Timestamps are rounded to 0.1 ms, durations to three significant digits, and seconds of a step to
four to six decimals. Reported values have nine significant digits, bytes have four. Counts and
checksums are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from math import isfinite
from typing import Any, TypeVar

from dfx_agent.facts.bounds import MAX_NAME_CHARACTERS, MAX_NAMES_OF_RANK
from dfx_agent.facts.ledger import LedgerNews
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.scalars import ReportedScalars, UpdateCounts
from dfx_agent.facts.steps import RankStep, SchedTimes, Step
from dfx_agent.snapshot import (
    DeviceMemory,
    EngineFacts,
    HeldMemory,
    HostMemory,
    NonAllocatorMemory,
    TimeSplit,
    WorkRow,
)

_INSTANT_NS = 10**5
_DIGITS = 3

_Row = TypeVar("_Row", HostMemory, DeviceMemory, HeldMemory, NonAllocatorMemory, Any)


def rank(facts: RankFacts) -> RankFacts:
    """``now_ns`` and ``now_seconds`` are 0: the document of the node contains them once."""
    return replace(
        facts,
        now_ns=0,
        now_seconds=0.0,
        begin_ns=_instant(facts.begin_ns),
        moved_ns=_instant(facts.moved_ns),
        others_moved_ns=_instant(facts.others_moved_ns),
        group_moved_ns={group: _instant(at) for group, at in facts.group_moved_ns.items()},
        last_event_ns=_instant_or_none(facts.last_event_ns),
        seconds_before_guest=round(facts.seconds_before_guest, 2),
        step_durations=_durations(facts.step_durations),
        arrivals=tuple(a._replace(begin_ns=_instant(a.begin_ns)) for a in facts.arrivals),
        asks_since_ns=_instant_or_none(facts.asks_since_ns),
        stage_durations=_durations_of(facts.stage_durations),
        collective_durations=_durations_of(facts.collective_durations),
        longest_gap_seconds=round(facts.longest_gap_seconds, 2),
        processor_share=round(facts.processor_share, 3),
        opened_ns=tuple(map(_instant, facts.opened_ns)),
    )


def totals(exact: RankTotals) -> RankTotals:
    """A job chooses names of counters, tokens and stages, so their number is limited."""
    return replace(
        exact,
        totals=_split(exact.totals),
        tokens_total=_limited(exact.tokens_total),
        counters_total={n: _value(num) for n, num in _limited(exact.counters_total).items()},
        host_memory=exact.host_memory and _numbers(exact.host_memory),
        devices=tuple(map(_numbers, exact.devices[:MAX_NAMES_OF_RANK])),
        device_bytes={name: _bytes(value) for name, value in exact.device_bytes.items()},
        held=tuple(map(_numbers, exact.held[:MAX_NAMES_OF_RANK])),
        beside_allocator=exact.beside_allocator and _numbers(exact.beside_allocator),
        groups=exact.groups[:MAX_NAMES_OF_RANK],
        event_loop=_floats(exact.event_loop),
        work=exact.work and _work(exact.work),
    )


def engine(exact: EngineFacts) -> EngineFacts:
    """An engine may report any text, which a hub would refuse: it is cut."""
    return replace(
        exact,
        url=exact.url[:MAX_NAME_CHARACTERS],
        model=exact.model[:MAX_NAME_CHARACTERS],
        worker=exact.worker[:MAX_NAME_CHARACTERS],
        reason=exact.reason[:MAX_NAME_CHARACTERS],
        unknown_names=tuple(name[:MAX_NAME_CHARACTERS] for name in exact.unknown_names),
    )


def step(exact: Step) -> Step:
    ranks = {label: _rank_step(rank_step) for label, rank_step in exact.ranks.items()}
    end = None if exact.last_end_seconds is None else round(exact.last_end_seconds, 4)
    begin = round(exact.begin_seconds, 4)
    return replace(exact, begin_seconds=begin, last_end_seconds=end, ranks=ranks)


def scalars(exact: ReportedScalars) -> ReportedScalars:
    rounded = tuple(
        s._replace(value=_value(s.value), time_ns=_instant(s.time_ns)) for s in exact.scalars
    )
    return replace(exact, scalars=rounded)


def batches(news: LedgerNews) -> LedgerNews:
    """Checksums stay exact. A step is sent once, not once per record."""
    rounded = tuple(replace(c, time_ns=_instant(c.time_ns)) for c in news.completed)
    return replace(news, completed=rounded, steps=tuple(dict.fromkeys(news.steps)))


def updates(exact: UpdateCounts) -> UpdateCounts:
    return exact._replace(event_seconds=round(exact.event_seconds, 3))


def _rank_step(exact: RankStep) -> RankStep:
    digits = 4 if exact.wall_seconds >= 1 else 5 if exact.wall_seconds >= 0.1 else 6
    return RankStep(
        round(exact.wall_seconds, digits),
        round(exact.waited_seconds, digits),
        {part: round(exact.parts[part], digits) for part in sorted(exact.parts)},
        exact.tokens,
        exact.num_forward_tokens,
        None if exact.busy_seconds is None else round(exact.busy_seconds, digits),
        _processor(exact.processor),
        {
            name: time._replace(blocked_seconds=round(time.blocked_seconds, digits))
            for name, time in exact.groups.items()
        },
        {wait: round(seconds, digits) for wait, seconds in exact.waits.items()},
        exact.num_samples,
    )


def _split(exact: TimeSplit) -> TimeSplit:
    """Rounded to 10 ms: totals may be hours."""
    return TimeSplit(
        round(exact.wall_seconds, 2),
        round(exact.active_seconds, 2),
        round(exact.idle_seconds, 2),
        {name: round(seconds, 2) for name, seconds in _limited(exact.stage_seconds).items()},
        {
            kind: {stage: round(seconds, 2) for stage, seconds in _limited(places).items()}
            for kind, places in exact.wait_seconds.items()
        },
    )


def _processor(times: SchedTimes | None) -> SchedTimes | None:
    if times is None:
        return None
    crowd = None if times.crowd is None else round(times.crowd, 2)
    ran_ns, delayed_ns, system_ns = map(_instant, (times.ran_ns, times.delayed_ns, times.system_ns))
    return SchedTimes(ran_ns, delayed_ns, crowd, system_ns, times.num_faults)


def _instant(at_ns: int) -> int:
    return at_ns - at_ns % _INSTANT_NS


def _instant_or_none(at_ns: int | None) -> int | None:
    return None if at_ns is None else _instant(at_ns)


def _durations(exact: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(_duration, exact))


def _durations_of(by_name: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: _durations(durations) for name, durations in by_name.items()}


def _duration(ns: int) -> int:
    """Rounded to three significant digits."""
    return round(ns, _DIGITS - len(str(ns))) if ns >= 10**_DIGITS else ns


def _limited(by_name: Mapping[str, float]) -> dict[str, float]:
    return dict(islice(by_name.items(), MAX_NAMES_OF_RANK))


def _numbers(row: _Row) -> _Row:
    """A row of memory with all its bytes rounded."""
    return replace(row, **{field.name: _bytes(getattr(row, field.name)) for field in fields(row)})


def _bytes(value: Any) -> Any:
    """Four significant digits; also in mappings and rows. Texts stay."""
    if isinstance(value, dict):
        return {name: _bytes(part) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _numbers(value)
    return float(f"{value:.4g}") if isinstance(value, (float, int)) else value


def _work(exact: WorkRow) -> WorkRow:
    """A job chooses its models and stages, so their number is limited, and the text on them."""
    most = MAX_NAMES_OF_RANK
    named = replace(exact, reason=exact.reason[:MAX_NAME_CHARACTERS], models=exact.models[:most])
    rounded: WorkRow = _floats(replace(named, stages=exact.stages[:most]))
    return rounded


def _floats(value: Any) -> Any:
    """Floats have four significant digits, also in rows and in their rows; integers are exact."""
    if is_dataclass(value) and not isinstance(value, type):
        rounded = {field.name: _floats(getattr(value, field.name)) for field in fields(value)}
        return replace(value, **rounded)
    if isinstance(value, tuple):
        return tuple(map(_floats, value))
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _value(value: float) -> float:
    return float(f"{value:.9g}") if isfinite(value) else value
