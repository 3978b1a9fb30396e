"""Steps as a trace for Perfetto (ui.perfetto.dev).

A process for each rank, with a track of its steps and one of its stages and waits. Source: the
Trace Event Format, whose complete events (X) have begin and duration in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dfx_agent.snapshot import TimelineRow

_STEPS, _PIECES = 1, 2
_TRACKS = {_STEPS: "steps", _PIECES: "stages and waits"}
_FIRST_TRACK = 1000  # a thread with its process' number would be called the main one

Event = dict[str, Any]


def trace(run: str, rows: Sequence[TimelineRow], agent_version: str) -> dict[str, Any]:
    """The document; times are relative to the first, whose Unix time is stored in it too."""
    begin = min((row.begin_seconds for row in rows), default=0.0)
    numbers = {key: n for n, key in enumerate(dict.fromkeys((r.role, r.rank) for r in rows), 1)}
    events = [event for key, n in numbers.items() for event in _names(n, *key)]
    for row in rows:
        events += _of_row(row, numbers[row.role, row.rank], begin)
    about = {"run": run, "begin_seconds": begin, "dfx_agent": agent_version}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _names(number: int, role: str, rank: str) -> Iterable[Event]:
    process = {"ph": "M", "pid": number}
    yield {**process, "name": "process_name", "args": {"name": f"{role} rank {rank}"}}
    yield {**process, "name": "process_sort_index", "args": {"sort_index": number}}
    for track, name in _TRACKS.items():
        thread = {**process, "tid": _FIRST_TRACK + track}
        yield {**thread, "name": "thread_name", "args": {"name": name}}
        yield {**thread, "name": "thread_sort_index", "args": {"sort_index": track}}


def _of_row(row: TimelineRow, number: int, begin: float) -> Iterable[Event]:
    end = row.end_seconds
    if end is None:  # the step is running
        end = max((piece.end_seconds for piece in row.pieces), default=row.begin_seconds)
    about = {"step": row.step, "rank": row.rank}
    omitted = {"omitted_pieces": row.num_omitted_pieces} if row.num_omitted_pieces else {}
    name = "before the first step" if row.step is None else f"step {row.step}"
    yield {
        "name": name, "cat": "step", "pid": number, "tid": _FIRST_TRACK + _STEPS,
        **_span(row.begin_seconds - begin, end - begin), "args": about | omitted,
    }  # fmt: skip
    for piece in row.pieces:
        if piece.kind != "idle":
            name = piece.name if piece.kind == "stage" else f"wait {piece.name}"
            yield {
                "name": name, "cat": piece.kind, "pid": number, "tid": _FIRST_TRACK + _PIECES,
                **_span(piece.begin_seconds - begin, piece.end_seconds - begin), "args": about,
            }  # fmt: skip


def _span(begin_seconds: float, end_seconds: float) -> Event:
    """Round both ends to whole nanoseconds, so that adjacent pieces do not overlap."""
    begin_ns, end_ns = round(begin_seconds * 1e9), round(end_seconds * 1e9)
    return {"ph": "X", "ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
