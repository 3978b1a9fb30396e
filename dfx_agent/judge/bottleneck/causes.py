"""Components that cost a pipeline more than they should: by their own habit, or by their share.

The order is from what holds up all others to what is only felt: an event loop that is held makes
tools look slow, a slow tool makes samples old.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from statistics import fmean, median

from dfx_agent.durations import seconds_text
from dfx_agent.facts.pipeline import ProcessTime
from dfx_agent.judge.bottleneck.engine_causes import lost_engines
from dfx_agent.judge.bottleneck.habit import Change
from dfx_agent.judge.bottleneck.step_shares import (
    WEIGHT_SYNC,
    waited_for_samples,
    weight_sync_parts,
)
from dfx_agent.judge.bottleneck.window import Habits, Window, told
from dfx_agent.snapshot import BoundBy, CauseKind, EventLoopRow, PipelineCause, StepRow

_LATE_RATIO = 0.15  # of a step
_JOB_SHARE = 0.5  # of what held a loop, else it is the host
_HOLDER_SHARE = 0.1  # many places that each hold a loop for less are a host without room
_LEAST_STEPS = 2
_GROWN_RATIO = 0.1
_TOOL_RATIO = 0.4  # of an episode
_SYNC_RATIO = 0.3
_LEAST_GROUPS = 2.0
_FEWER_RATIO = 0.5
_WAITED_RATIO = 0.2
# stages beside which somebody waits for samples
_MARKED: Mapping[str, BoundBy] = {"tool": "tool", "environment": "tool", "reward": "reward"}

SAMPLES, TOOL, SYNC, STALE, ACTIVE = "samples", "tool call", "weight sync", "stale", "active"
RECEIVER_METRIC = "dfx_weight_update_seconds"
# what is asked of the numbers that frameworks tell
TOLD_METRICS = frozenset(
    {"dfx_step_stale_samples", "dfx_queue_depth", "dfx_tool_seconds", "dfx_turns",
     "dfx_request_latency_seconds", RECEIVER_METRIC}
)  # fmt: skip


def observe_steps(habits: Habits, rows: Iterable[StepRow]) -> None:
    """Note what each step was like that has closed since the last time."""
    for row in rows:
        parts = weight_sync_parts(row)
        habits.add(SYNC, row.step, sum(parts.values()))
        for part, seconds in parts.items():
            habits.add(part, row.step, seconds)
        waits = [waited_for_samples(cell) for cell in row.cells]
        habits.add(SAMPLES, row.step, fmean(waits) if waits else None)


def observe_told(habits: Habits, window: Window) -> None:
    """Note what is told at the newest step."""
    step = window.last.step
    habits.add(TOOL, step, _call_seconds(window))
    habits.add(STALE, step, told(window.told, "dfx_step_stale_samples", action="evicted_groups"))
    habits.add(ACTIVE, step, told(window.told, "dfx_queue_depth", queue="active"))
    for process in window.last.processes.values():
        for stage, seconds in process.stage_seconds.items():
            habits.add(_of_stage(process, stage), step, seconds)


def _of_stage(process: ProcessTime, stage: str) -> str:
    return f"{stage} of {process.role} {process.rank}"


def causes(
    window: Window, habits: Habits, waited: Change | None, slow: Iterable[PipelineCause]
) -> list[PipelineCause]:
    """The one that holds up the others first.

    ``waited``: how the wait for samples has changed; ``slow``: engines that are slower than others.
    """
    held = list(_held_loops(window))
    found = [*held, *_weight_sync(window, habits), *slow]
    if window.shares.ratio("rollout") >= _WAITED_RATIO:
        found = [*lost_engines(window), *found]
    if not held:
        found += list(_tools(window, habits)) or _marked(window, habits)
    found += _stale(habits)
    if not found:
        found += _few_in_flight(habits, waited)
    return found


def _held_loops(window: Window) -> Iterator[PipelineCause]:
    """Not what one stall of the host did: in most steps, and mostly by code of the job."""
    for _, process in window.processes():
        loop = process.event_loop
        if loop is None:
            continue
        share, name = _held_by(loop)
        late = [seconds * share for seconds in _late_by_step(window, process)]
        if share < _JOB_SHARE or len(late) < _LEAST_STEPS:
            continue
        if median(late) >= _LATE_RATIO * window.step_seconds:
            sentence = (
                f"{name} held the event loop of {process.role} {process.rank} for "
                f"{seconds_text(fmean(late))} of each step"
            )
            component = f"{process.role} event loop"
            yield PipelineCause("event loop", component, sentence, fmean(late), kind="held loop")


def _late_by_step(window: Window, process: ProcessTime) -> Iterator[float]:
    """Seconds in which its loop was late, of each step between two moments."""
    for before, after in pairwise(window.moments):
        pair = [moment.processes.get((process.role, process.rank)) for moment in (before, after)]
        loops = [each.event_loop for each in pair if each is not None and each.event_loop]
        if len(loops) == 2:
            late = loops[1].late_seconds_total - loops[0].late_seconds_total
            yield max(0.0, late) / (after.step - before.step)


def _held_by(loop: EventLoopRow) -> tuple[float, str]:
    """(share of the lateness that named code of the job is to blame for, which code most)."""
    total = max(loop.late_seconds, sum(holder.seconds for holder in loop.holders))
    named = [h for h in loop.holders if h.is_named_code and h.seconds >= _HOLDER_SHARE * total]
    if not total or not named:
        return 0.0, ""
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return sum(holder.seconds for holder in named) / total, named[0].name + more


def _weight_sync(window: Window, habits: Habits) -> Iterator[PipelineCause]:
    least = _GROWN_RATIO * window.step_seconds
    parts = weight_sync_parts(window.rows[-1])
    change = habits[SYNC].change(least)
    grown = {part: found for part in parts if (found := habits[part].change(least / 2))}
    seconds = median(sum(weight_sync_parts(row).values()) for row in window.rows)
    if change is None and seconds < _SYNC_RATIO * window.step_seconds:
        return
    part = max(grown, key=lambda p: grown[p].excess, default="") if change else ""
    part = part or max(parts, key=lambda p: parts[p], default=WEIGHT_SYNC)
    of_part = grown[part].now if part in grown else parts.get(part, 0.0)
    yield _sync_cause(window, change, seconds, part.removeprefix(WEIGHT_SYNC).strip("_"), of_part)


def _sync_cause(
    window: Window, change: Change | None, seconds: float, part: str, part_seconds: float
) -> PipelineCause:
    now = change.now if change else seconds
    more = (
        f"; until step {change.since_step - 1} it was {seconds_text(change.usual)}"
        if change
        else ""
    )
    sentence = f"weight sync takes {seconds_text(now)} of a step{more}"
    component = "weight sync"
    if part:
        component = f"weight {part}"
        sentence += f"; most of it is {part}: {seconds_text(part_seconds)}"
    slowest = _slow_receiver(window, part)
    if slowest:
        component += f" to {slowest[0]}"
        sentence += f", to {slowest[0]} {slowest[1]}"
    amount = change.excess if change else seconds
    since = change.since_step if change else None
    return PipelineCause(
        "weight sync", component, sentence, amount, "seconds", since, kind="weight sync"
    )


def _slow_receiver(window: Window, part: str) -> tuple[str, str] | None:
    """Who takes longest in this part, if much longer than the others."""
    of_part = {
        dict(key.labels).get("receiver", ""): value
        for key, value in window.told.items()
        if key.metric == RECEIVER_METRIC and ("part", part) in key.labels
    }
    seconds = {receiver: value for receiver, value in of_part.items() if receiver}
    if len(seconds) < 2:
        return None
    *others, (slowest, name) = sorted((value, receiver) for receiver, value in seconds.items())
    usual = others[len(others) // 2][0]
    if slowest < 2 * usual or slowest - usual < _GROWN_RATIO * window.step_seconds:
        return None
    return (
        f"rollout replica {name}",
        f"{seconds_text(slowest)}, to the others {seconds_text(usual)}",
    )


def _tools(window: Window, habits: Habits) -> Iterator[PipelineCause]:
    tool = told(window.told, "dfx_tool_seconds", stat="mean")
    generation = told(window.told, "dfx_request_latency_seconds", stat="mean")
    call = _call_seconds(window)
    if tool is None or call is None or not tool:
        return
    episode = tool + (generation or 0.0)
    change = habits[TOOL].change(_GROWN_RATIO * episode)
    if change is None and tool < _TOOL_RATIO * episode:
        return
    seconds = change.excess if change else call
    before = (
        f"; until step {change.since_step - 1} it was {seconds_text(change.usual)}"
        if change
        else ""
    )
    sentence = (
        f"a tool call takes {seconds_text(change.now if change else call)}{before}; tools are "
        f"{tool / episode:.0%} of an episode"
    )
    since = change.since_step if change else None
    yield PipelineCause(
        "tool", "tool", sentence, seconds, "seconds a call", since, kind="slow tool"
    )


def _marked(window: Window, habits: Habits) -> Iterator[PipelineCause]:
    """Tools and rewards that a job marks as stages, while others wait for what comes of them."""
    if window.shares.ratio("rollout") < _WAITED_RATIO:
        return
    for process in window.last.processes.values():
        lasts = process.stage_seconds
        whole = max(lasts.values(), default=0.0)
        for stage in sorted(_MARKED.keys() & lasts):
            change = habits[_of_stage(process, stage)].change(_GROWN_RATIO * window.step_seconds)
            has_doubled = change is not None and change.now >= 2 * change.usual
            is_long = lasts[stage] >= _TOOL_RATIO * max(whole, window.step_seconds)
            if has_doubled or is_long:
                yield _marked_cause(process, stage, lasts[stage], change if has_doubled else None)


def _marked_cause(
    process: ProcessTime, stage: str, seconds: float, change: Change | None
) -> PipelineCause:
    now = change.now if change else seconds
    since = change.since_step if change else None
    until = (
        f"; until step {since - 1} it was {seconds_text(change.usual)}" if change and since else ""
    )
    sentence = (
        f"{stage} of {process.role} {process.rank} takes {seconds_text(now)} each time{until}"
    )
    bound = _MARKED[stage]
    amount = change.excess if change else seconds
    kind: CauseKind = "slow reward" if bound == "reward" else "slow tool"
    return PipelineCause(bound, stage, sentence, amount, "seconds a call", since, kind=kind)


def _call_seconds(window: Window) -> float | None:
    """Of one call, where turns are told; else of a sample."""
    tool = told(window.told, "dfx_tool_seconds", stat="mean")
    turns = told(window.told, "dfx_turns", stat="mean")
    if tool is None:
        return None
    return tool / (turns - 1) if turns is not None and turns > 1 else tool


def _stale(habits: Habits) -> Iterator[PipelineCause]:
    change = habits[STALE].change(_LEAST_GROUPS)
    if change is None:
        return
    sentence = (
        f"{change.now:.2g} groups of a step are thrown away: their weights are too old by the time "
        "that they could be trained on"
    ) + change.until(f"{change.usual:.2g}")
    yield PipelineCause(
        "rollout",
        "sample queue",
        sentence,
        change.excess,
        "groups",
        change.since_step,
        kind="stale samples",
    )


def _few_in_flight(habits: Habits, waited: Change | None) -> Iterator[PipelineCause]:
    active = habits[ACTIVE].usual
    change = habits[ACTIVE].change(_FEWER_RATIO * active, falls=True) if active else None
    if change is None or waited is None:
        return
    sentence = (
        f"only {change.now:.2g} instead of {change.usual:.2g} groups are rolled out at a time "
        f"since step {change.since_step}: the engines have too little to do"
    )
    yield PipelineCause(
        "rollout",
        "rollout concurrency",
        sentence,
        waited.excess,
        "seconds",
        change.since_step,
        kind="few requests",
    )
