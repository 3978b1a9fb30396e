"""Steps as a trace for Perfetto (ui.perfetto.dev).

A process for each rank: its steps, in them the stages and waits; counters; arrows from the rank
that came last to a collective to what the ranks that waited did next. A process for the run: its
incidents and curves. Source: the Trace Event Format, whose times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from dfx_agent.snapshot import Incident, Piece, RunRow, SignalHistory, TimelineRow

_STEPS = 1
_FIRST_TRACK = 1000  # a thread with its process' number would be called the main one
_UPDATES = frozenset({"actor_update", "critic_update"})
_PARTS = frozenset({"forward", "backward", "optimizer", "communication"})
_MEETING_WAITS = frozenset({"collective", "barrier"})
_MEETING_SECONDS = 0.002  # ranks that met leave a collective within this time
_LAST_SHARE = 0.5  # the last rank waits at most this share of the longest wait
_MAX_FLOWS = 20_000

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """What a trace shows besides the steps; both may be missing."""

    run: RunRow | None = None
    history: SignalHistory | None = None


_NOTHING = TraceContext()


def trace(
    run: str, rows: Sequence[TimelineRow], agent_version: str, context: TraceContext = _NOTHING
) -> dict[str, Any]:
    """The document; times are relative to the first, whose Unix time is stored in it too."""
    begin = min((row.begin_seconds for row in rows), default=0.0)
    numbers = {key: n for n, key in enumerate(dict.fromkeys((r.role, r.rank) for r in rows), 2)}
    events = [event for key, n in numbers.items() for event in _names(n, *key)]
    for row in rows:
        events += _of_row(row, numbers[row.role, row.rank], begin)
    events += _flows(rows, numbers, begin)
    if context.run is not None and rows:
        events += _of_run(context.run, context.history, rows, numbers, begin)
    about = {"run": run, "begin_seconds": begin, "dfx_agent": agent_version}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _names(number: int, role: str, rank: str) -> Iterator[Event]:
    yield from _process(number, f"{role} rank {rank}")
    yield _thread(number, _STEPS, "steps, stages and waits")


def _process(number: int, name: str) -> Iterator[Event]:
    process = {"ph": "M", "pid": number}
    yield {**process, "name": "process_name", "args": {"name": name}}
    yield {**process, "name": "process_sort_index", "args": {"sort_index": number}}


def _thread(number: int, track: int, name: str) -> Event:
    thread = {"ph": "M", "pid": number, "tid": _FIRST_TRACK + track}
    return {**thread, "name": "thread_name", "args": {"name": name}}


def _end_of(row: TimelineRow) -> float:
    """Of a step that is running: the end of its latest piece."""
    if row.end_seconds is not None:
        return row.end_seconds
    return max((piece.end_seconds for piece in row.pieces), default=row.begin_seconds)


def _of_row(row: TimelineRow, number: int, begin: float) -> Iterator[Event]:
    """The step; in it the updates; in them their parts. A slice never leaves the one around it."""
    end = _end_of(row)
    about = {"step": row.step, "rank": row.rank}
    omitted = {"omitted_pieces": row.num_omitted_pieces} if row.num_omitted_pieces else {}
    name = "before the first step" if row.step is None else f"step {row.step}"
    track = {"pid": number, "tid": _FIRST_TRACK + _STEPS}
    yield {
        "name": name, "cat": "step", **track, **_span(row.begin_seconds - begin, end - begin),
        "args": about | omitted,
    }  # fmt: skip
    for update, pieces in _grouped(row.pieces):
        if update:
            span = _span(pieces[0].begin_seconds - begin, pieces[-1].end_seconds - begin)
            yield {"name": update, "cat": "stage", **track, **span, "args": about}
        for piece in pieces:
            if piece.kind == "idle" or piece.name == update:
                continue
            shown = piece.name if piece.kind == "stage" else f"wait {piece.name}"
            span = _span(
                max(piece.begin_seconds, row.begin_seconds) - begin,
                min(piece.end_seconds, end) - begin,
            )
            yield {"name": shown, "cat": piece.kind, **track, **span, "args": about}


def _grouped(pieces: Sequence[Piece]) -> Iterator[tuple[str, Sequence[Piece]]]:
    """(update, its pieces in a row), and ("", pieces) for those that are inside no update.

    A piece is the innermost stage: forward and backward next to an update are inside it. Waits
    belong to an update if a part of it follows.
    """
    group: list[Piece] = []
    for piece in pieces:
        if group and _ends(group, piece):
            yield from _closed(group)
            group = []
        group.append(piece)
        if len(group) == 1 and not _is_of_update(piece):
            yield "", tuple(group)
            group = []
    yield from _closed(group)


def _is_of_update(piece: Piece) -> bool:
    return piece.kind == "stage" and piece.name in _UPDATES | _PARTS


def _ends(group: Sequence[Piece], piece: Piece) -> bool:
    """Whether another stage or another update begins."""
    if piece.kind != "stage":
        return False
    others = {p.name for p in group if p.name in _UPDATES} - {piece.name}
    return not _is_of_update(piece) or (piece.name in _UPDATES and bool(others))


def _closed(group: Sequence[Piece]) -> Iterator[tuple[str, Sequence[Piece]]]:
    last = max((n for n, piece in enumerate(group) if _is_of_update(piece)), default=-1)
    inside, after = group[: last + 1], group[last + 1 :]
    update = next((piece.name for piece in inside if piece.name in _UPDATES), "")
    if inside:
        yield update, inside
    if after:
        yield "", after


def _flows(
    rows: Sequence[TimelineRow], numbers: Mapping[tuple[str, str], int], begin: float
) -> Iterator[Event]:
    """Arrows from the rank that came last to a collective to what the waiting ranks did next.

    Not to their waits, which began earlier: Perfetto draws arrows from the slice that began first.
    """
    number = 0
    for (last_key, last), waiting in _meetings(rows):
        for key, wait in waiting:
            number += 1
            if number > _MAX_FLOWS:
                return
            flow = {"cat": "flow", "name": "last to arrive", "id": number}
            track = {"tid": _FIRST_TRACK + _STEPS}
            arrived = round((last.begin_seconds - begin) * 1e9)
            left = round((wait.end_seconds - begin) * 1e9) - 1  # binds to the slice that follows
            yield {**flow, "ph": "s", "pid": numbers[last_key], **track, "ts": arrived / 1e3}
            at = max(arrived, left) / 1e3
            yield {**flow, "ph": "f", "pid": numbers[key], **track, "ts": at}


_Wait = tuple[tuple[str, str], Piece]


def _meetings(rows: Sequence[TimelineRow]) -> Iterator[tuple[_Wait, list[_Wait]]]:
    """(the wait of the rank that came last, waits of the others) of each collective."""
    by_step: dict[tuple[str, int | None], list[_Wait]] = {}
    for row in rows:
        pieces = (p for p in row.pieces if p.kind == "wait" and p.name in _MEETING_WAITS)
        found = by_step.setdefault((row.role, row.step), [])
        found += [((row.role, row.rank), piece) for piece in pieces]
    for waits in by_step.values():
        waits.sort(key=lambda wait: wait[1].end_seconds)
        met: list[_Wait] = []
        for wait in waits:
            if met and wait[1].end_seconds - met[0][1].end_seconds > _MEETING_SECONDS:
                yield from _last_of(met)
                met = []
            met.append(wait)
        yield from _last_of(met)


def _last_of(met: list[_Wait]) -> Iterator[tuple[_Wait, list[_Wait]]]:
    """Nothing where ranks came together, or where a rank is there twice."""
    if len(met) < 2 or len({key for key, _ in met}) < len(met):
        return
    last = max(met, key=lambda wait: wait[1].begin_seconds)
    longest = max(piece.end_seconds - piece.begin_seconds for _, piece in met)
    if last[1].end_seconds - last[1].begin_seconds <= _LAST_SHARE * longest:
        yield last, [wait for wait in met if wait is not last]


def _of_run(
    run: RunRow,
    history: SignalHistory | None,
    rows: Sequence[TimelineRow],
    numbers: Mapping[tuple[str, str], int],
    begin: float,
) -> Iterator[Event]:
    """Incidents and curves of the run, counters of its ranks, within the time of the steps."""
    yield from _process(1, f"run {run.run}")
    end = max(map(_end_of, rows))
    for track, incident in enumerate((*run.incidents, *run.past_incidents), 1):
        yield from _incident(incident, track, begin, end)
    ends = {row.step: _end_of(row) for row in rows if row.end_seconds is not None}
    for series in history.signals if history else ():
        for step, value in zip(history.steps if history else (), series.values, strict=True):
            if step in ends and value is not None and isfinite(value):
                yield _counter(1, series.signal, ends[step] - begin, value)
    for closed in run.steps:
        for cell in closed.cells:
            number = numbers.get((closed.role, cell.rank))
            if number is None or closed.step not in ends:
                continue
            seconds, at = cell.split.wall_seconds, closed.begin_seconds - begin
            tokens = cell.tokens.get("total", sum(cell.tokens.values()))
            if tokens and seconds > 0:
                yield _counter(number, "tokens per second", at, tokens / seconds)
            waits = sum(sum(by_stage.values()) for by_stage in cell.split.wait_seconds.values())
            yield _counter(number, "waited seconds of the step", at, waits)


def _incident(incident: Incident, track: int, begin: float, end: float) -> Iterator[Event]:
    """A slice for as long as it lasted, and a mark through all tracks where it began."""
    since, until = incident.since_seconds, incident.end_seconds or end
    if until < begin or since > end:
        return
    place = {"pid": 1, "tid": _FIRST_TRACK + track}
    yield _thread(1, track, f"incident: {incident.kind}")
    args = {"sentence": incident.sentence, "ranks": ", ".join(incident.ranks)}
    span = _span(max(since, begin) - begin, max(min(until, end), since, begin) - begin)
    yield {"name": incident.summary, "cat": "incident", **place, **span, "args": args}
    if since >= begin:
        mark = {"name": f"{incident.kind} began", "cat": "incident", "ph": "i", "s": "g"}
        yield {**mark, **place, "ts": span["ts"], "args": args}


def _counter(number: int, name: str, seconds: float, value: float) -> Event:
    at = round(max(0.0, seconds) * 1e9) / 1e3
    return {"ph": "C", "pid": number, "name": name, "ts": at, "args": {"value": value}}


def _span(begin_seconds: float, end_seconds: float) -> Event:
    """Round both ends to whole nanoseconds, so that adjacent pieces do not overlap."""
    begin_ns, end_ns = round(begin_seconds * 1e9), round(end_seconds * 1e9)
    return {"ph": "X", "ts": begin_ns / 1e3, "dur": max(0, end_ns - begin_ns) / 1e3}
