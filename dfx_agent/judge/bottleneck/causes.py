"""Components that cost a pipeline more than they should: by their own habit, or by their share.

The order is from what holds up all others to what is only felt: an event loop that is held makes
tools look slow, a slow tool makes samples old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from statistics import fmean, median

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.pipeline import ProcessTime
from dfx_agent.judge.bottleneck import sentences
from dfx_agent.judge.bottleneck.engine_causes import lost_engines
from dfx_agent.judge.bottleneck.sentences import percent
from dfx_agent.judge.bottleneck.step_shares import (
    WEIGHT_SYNC,
    waited_for_samples,
    weight_sync_parts,
)
from dfx_agent.judge.bottleneck.window import Change, Habits, Window, told
from dfx_agent.snapshot import BoundBy, CauseKind, EventLoopRow, LoopHolder, PipelineCause, StepRow

_LATE_RATIO = 0.15  # of a step
_JOB_SHARE = 0.5  # of what held a loop, else it is the host
_HOLDER_SHARE = 0.1  # many places that each hold a loop for less are a host without room
# ... or, where it waits mostly for a processor, one coroutine that holds it for long at a time
_COROUTINE_SHARE, _LONG_HOLD_RATIO = 0.4, 0.05
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
        share, name = _held_by(loop, window.step_seconds)
        late = [seconds * share for seconds in _late_by_step(window, process)]
        if not share or len(late) < _LEAST_STEPS:
            continue
        if median(late) >= _LATE_RATIO * window.step_seconds:
            sentence = sentences.HELD_LOOP(
                holder=name,
                process=f"{process.role} {process.rank}",
                seconds=seconds_text(fmean(late)),
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


def _held_by(loop: EventLoopRow, step_seconds: float) -> tuple[float, str]:
    """(share of the lateness that named code of the job is to blame for, which code most)."""
    total = max(loop.late_seconds, sum(holder.seconds for holder in loop.holders))
    named = [h for h in loop.holders if h.is_named_code and h.seconds >= _HOLDER_SHARE * total]
    share = sum(holder.seconds for holder in named) / total if total else 0.0
    if share < _JOB_SHARE:
        return _held_by_one(loop, step_seconds)
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return share, named[0].name + more


def _held_by_one(loop: EventLoopRow, step_seconds: float) -> tuple[float, str]:
    """Of a loop that waits mostly for a processor: one coroutine that holds it for long at a time.

    It holds the loop while it waits for a processor, too. On a host without room alone, many places
    hold a loop, each for short times.
    """
    code = [holder for holder in loop.holders if holder.is_code]
    code_seconds = sum(holder.seconds for holder in code)
    total = max(loop.late_seconds, sum(holder.seconds for holder in loop.holders))
    by_coroutine: defaultdict[str, list[LoopHolder]] = defaultdict(list)
    for holder in code:
        if holder.is_named_code:
            by_coroutine[_coroutine(holder)].append(holder)
    most = max(by_coroutine.values(), key=_sum_seconds, default=[])
    share = _sum_seconds(most) / code_seconds if code_seconds else 0.0
    longest = max((h.seconds / max(1, h.num_times) for h in most), default=0.0)
    if share < _COROUTINE_SHARE or longest * total < _LONG_HOLD_RATIO * step_seconds * code_seconds:
        return 0.0, ""
    return share, max(most, key=lambda holder: holder.seconds).name


def _sum_seconds(holders: Iterable[LoopHolder]) -> float:
    return sum(holder.seconds for holder in holders)


def _coroutine(holder: LoopHolder) -> str:
    """Task and coroutine, without the function inside it that was running."""
    return " > ".join(holder.name.split(" > ")[:2])


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
    slowest = _slow_receiver(window, part)
    component = f"weight {part}" if part else "weight sync"
    sentence = sentences.WEIGHT_SYNC(
        seconds=seconds_text(change.now if change else seconds),
        until=_until(change),
        mostly=_mostly(part, part_seconds, slowest),
    )
    return PipelineCause(
        "weight sync",
        f"{component} to {slowest[0]}" if slowest else component,
        sentence,
        change.excess if change else seconds,
        since_step=change.since_step if change else None,
        kind="weight sync",
    )


def _mostly(part: str, seconds: float, slowest: tuple[str, str] | None) -> str:
    """As in " Most of it is transfer: 1.05 s to rollout replica 1, 0.05 s to the others."."""
    if not part:
        return ""
    amount = slowest[1] if slowest else seconds_text(seconds)
    return f" Most of it is {part}: {amount}."


def _until(change: Change | None) -> str:
    """As in "; until step 11 it was 0.2 s"; "" without a change."""
    return change.until(seconds_text(change.usual)) if change else ""


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
    receiver = f"rollout replica {name}"
    return receiver, f"{seconds_text(slowest)} to {receiver}, {seconds_text(usual)} to the others"


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
    sentence = sentences.TOOL(
        seconds=seconds_text(change.now if change else call),
        until=_until(change),
        share=percent(tool / episode),
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
    since = change.since_step if change else None
    sentence = sentences.MARKED_STAGE(
        stage=stage.capitalize(),
        process=f"{process.role} {process.rank}",
        seconds=seconds_text(change.now if change else seconds),
        until=_until(change),
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
    sentence = sentences.STALE_SAMPLES(
        groups=f"{change.now:.2g}", until=change.until(f"{change.usual:.2g}")
    )
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
    sentence = sentences.FEW_REQUESTS(
        groups=f"{change.now:.2g}", usual=f"{change.usual:.2g}", step=change.since_step
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
