"""A run, or a stored hang or crash, as one HTML page: no script, no network, all text escaped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dfx_agent.base.html import template
from dfx_agent.base.text import age_text, bytes_text
from dfx_agent.catalogue.utilisation import work_lines
from dfx_agent.exporters.run_drawings import (
    bar_drawing,
    curve_drawings,
    heatmap_drawing,
    legend_of,
    timeline_drawing,
)
from dfx_agent.snapshot import (
    AgentRow,
    Incident,
    IncidentEvidence,
    OpenSpan,
    RankRow,
    RecordedCollective,
    RunRow,
    SignalHistory,
    StepRow,
    TimelineRow,
    Verdict,
)
from dfx_agent.snapshot.banner import banner_of, blamed_ranks

_MOST_NODES = 8  # that are named in one line


@dataclass(frozen=True)
class _Cell:
    text: str
    is_number: bool


@dataclass(frozen=True)
class _Row:
    cells: tuple[_Cell, ...]
    is_blamed: bool = False


@dataclass(frozen=True)
class _IncidentLine:
    """One incident, open or over."""

    begin: str
    end: str
    sentence: str


def of_run(
    run: RunRow,
    agent: AgentRow,
    time_seconds: float,
    history: SignalHistory | None = None,
    timeline: Sequence[TimelineRow] = (),
) -> str:
    """The page of a run at ``time_seconds``, with its curves and the timeline of latest steps."""
    nodes = sorted({rank.node for rank in run.ranks})
    where = f"{len(nodes)} nodes: {', '.join(nodes[:_MOST_NODES])}" if agent.nodes else ""
    where += ", ..." if where and len(nodes) > _MOST_NODES else ""
    written = [
        where or f"node {agent.node}",
        f"dfx-agent {agent.version}",
        f"as of {_clock(time_seconds)}",
    ]
    return _page(run, "report", written, time_seconds, None, _drawn(run, history, timeline))


def of_incident(incident: IncidentEvidence) -> str:
    """The page of an evidence file."""
    verdict, end = incident.verdict, incident.end_seconds
    written = [
        f"node {incident.node}",
        f"dfx-agent {incident.agent_version}",
        f"found {_clock(incident.begin_seconds)}",
        f"{incident.outcome} {_clock(end)}" if end else "not over when written",
    ]
    what = f"{verdict.kind} of {verdict.role}" if verdict.role else verdict.kind
    return _page(incident.run, what, written, incident.begin_seconds, incident)


def _page(
    run: RunRow,
    what: str,
    written: list[str],
    at: float,
    incident: IncidentEvidence | None,
    drawn: Mapping[str, Any] | None = None,
) -> str:
    places = incident.places if incident else ()
    return template(__package__, "evidence.html").render(
        title=f"{run.run}: {what}",
        subtitle=" · ".join([run.framework, *written] if run.framework else written),
        run=run,
        incident=incident,
        facts_of=partial(_facts, run),
        ranks=list(_ranks(run, at, {(p.role, p.rank): p.last_collective for p in places})),
        recorded=[
            (place, [_collective(issued, at) for issued in place.recorded_collectives])
            for place in places
            if place.recorded_collectives
        ],
        without_stacks=[place.rank for place in places if not place.threads],
        steps=[_step(step) for step in reversed(run.steps)],
        work=work_lines(run),
        banner=() if incident else banner_of(run, at),
        incidents=[_incident_line(row) for row in (*run.incidents, *run.past_incidents)],
        memory=list(_memory(run)),
        drawn=drawn or {"curves": (), "ranks": (), "legend": ()},
    )


def _drawn(
    run: RunRow, history: SignalHistory | None, timeline: Sequence[TimelineRow]
) -> Mapping[str, Any]:
    blamed = blamed_ranks(run)
    incidents = (*run.incidents, *run.past_incidents)
    steps = [incident.step for incident in incidents if incident.step is not None]
    drawings = (
        bar_drawing(run, blamed), timeline_drawing(timeline, blamed), heatmap_drawing(run, blamed)
    )  # fmt: skip
    return {
        "curves": curve_drawings(history, steps) if history and history.steps else [],
        "ranks": [drawing for drawing in drawings if drawing],
        "legend": legend_of(run),
    }


def _incident_line(incident: Incident) -> _IncidentLine:
    step = "" if incident.step is None else f"step {incident.step}, "
    end = incident.end_seconds
    over = "still open" if end is None else _clock(end)
    lasting = " (until the run ended)" if incident.is_until_run_end else ""
    return _IncidentLine(
        f"{step}{_clock(incident.since_seconds)}", f"{over}{lasting}", incident.sentence
    )


def _memory(run: RunRow) -> Iterator[_Row]:
    """Memory of each rank: of its process, its growth, and of each device with its limit."""
    for rank in run.ranks:
        host = rank.host_memory
        devices = [
            f"{device.device}: {_bytes(device.allocated_bytes)} of {_bytes(device.limit_bytes)}"
            for device in rank.devices
        ]
        if host is None and not devices:
            continue
        used = None if host is None else _bytes(host.anonymous_bytes)
        slope = None if host is None else host.slope_bytes_per_step
        grows = None if slope is None else f"{_bytes(slope)} per step"
        yield _row([rank.role, rank.rank, used, grows, ", ".join(devices)], {1, 2, 3})


def _bytes(num_bytes: float | None) -> str:
    """As in "292 MiB"; "unknown" without a value."""
    return "unknown" if num_bytes is None else bytes_text(num_bytes)


def _facts(run: RunRow, verdict: Verdict) -> str:
    """Without a begin where an incident has it: a verdict sees only the latest steps."""
    begun = {(incident.kind, incident.role) for incident in run.incidents}
    has_begin = (verdict.kind, verdict.role) in begun
    since = None if has_begin else verdict.since_seconds
    fields = {
        "cause": verdict.cause,
        "to blame": ", ".join(verdict.ranks),
        "stage": verdict.stage_text,
        "step": "" if verdict.step is None or has_begin else str(verdict.step),
        "since": "" if since is None else _clock(since),
    }
    return "; ".join(f"{name}: {value}" for name, value in fields.items() if value)


def _ranks(run: RunRow, at: float, reached: Any) -> Iterator[_Row]:
    """``reached``: (role, rank) -> group -> latest sequence number, if it was stored."""
    blamed = {
        (verdict.role, rank)
        for verdict in run.verdicts
        if verdict.state == "found"
        for rank in verdict.ranks
    }
    for rank in run.ranks:
        key = rank.role, rank.rank
        groups = {group.group: group.num_enqueued for group in rank.groups}
        yield _row(_rank(rank, at, reached.get(key, groups)), {1, 3, 5, 7}, is_blamed=key in blamed)


def _rank(rank: RankRow, at: float, groups: dict[str, int]) -> list[Any]:
    last = rank.last_event_seconds
    return [
        rank.role,
        rank.rank,
        rank.node,
        rank.pid,
        rank.state,
        rank.step,
        _opened(rank.inflight),
        None if last is None else f"{max(0.0, at - last):.1f} s",
        ", ".join(f"{group} #{number}" for group, number in sorted(groups.items())),
    ]


def _opened(inflight: Sequence[OpenSpan]) -> str:
    """Open spans, outermost first, with the time for which the innermost has been open."""
    if not inflight:
        return ""
    names = [
        span.name + ("" if span.sequence is None else f" #{span.sequence}") for span in inflight
    ]
    return f"{' > '.join(names)} ({inflight[-1].elapsed_seconds:.1f} s)"


def _collective(issued: RecordedCollective, at: float) -> str:
    """For example "all_reduce [1048576] float32, #42 of group 0, issued 14 min before"."""
    number = "" if issued.sequence is None else f"#{issued.sequence} of "
    facts = [
        " ".join(filter(None, (issued.operation, issued.tensors))),
        f"{number}group {issued.group} ({issued.group_description or issued.backend})",
        f"issued {age_text(at - issued.issued_seconds)} before",
    ]
    return ", ".join(facts if issued.is_finished else [*facts, "not finished"])


def _step(step: StepRow) -> _Row:
    splits = [cell.split for cell in step.cells]
    waits = [sum(sum(by.values()) for by in split.wait_seconds.values()) for split in splits]
    cells = [
        step.step,
        step.role,
        f"{step.end_seconds - step.begin_seconds:.3f} s",
        _mean(split.active_seconds for split in splits),
        _mean(waits),
        _mean(split.idle_seconds for split in splits),
        None if step.bubble_ratio is None else f"{step.bubble_ratio:.1%}",
        ", ".join(step.missing_ranks),
    ]
    return _row(cells, {0, 2, 3, 4, 5, 6})


def _mean(values: Iterable[float]) -> str | None:
    """Mean over ranks, in seconds."""
    seconds = list(values)
    return f"{sum(seconds) / len(seconds):.3f} s" if seconds else None


def _row(values: Sequence[Any], numbers: set[int], *, is_blamed: bool = False) -> _Row:
    cells = (
        _Cell("–" if value is None else str(value), column in numbers)
        for column, value in enumerate(values)
    )
    return _Row(tuple(cells), is_blamed)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))
