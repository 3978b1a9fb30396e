"""Finds components that cost a pipeline more than they usually do, or more than their share.

Causes are ordered from those that delay others to those that are consequences. For example, a
blocked event loop makes tools look slow, and a slow tool makes samples stale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from statistics import fmean, median

from dfx_agent.base.text import seconds_text
from dfx_agent.judge.bottleneck import sentences
from dfx_agent.judge.bottleneck.engine_causes import lost_engines
from dfx_agent.judge.bottleneck.pipeline_facts import ProcessTime
from dfx_agent.judge.bottleneck.sentences import percent
from dfx_agent.judge.bottleneck.step_shares import (
    WEIGHT_SYNC,
    waited_for_samples,
    weight_sync_parts,
)
from dfx_agent.judge.bottleneck.window import (
    Change,
    FigureHistories,
    PipelineWindow,
    reported_value,
)
from dfx_agent.snapshot import BoundBy, CauseKind, EventLoopRow, LoopHolder, PipelineCause, StepRow

_LATE_RATIO = 0.15  # of a step
_JOB_SHARE = 0.5  # share of job code in what blocked a loop; below, the host is the cause
_HOLDER_SHARE = 0.1  # smaller holders are ignored: many of them mean that the host is busy
# thresholds for one coroutine that blocks a loop for long at a time on a busy host
_COROUTINE_SHARE, _LONG_HOLD_RATIO = 0.4, 0.05
_LEAST_STEPS = 2
_GROWN_RATIO = 0.1
_TOOL_RATIO = 0.4  # of an episode
_SYNC_RATIO = 0.3
_LEAST_GROUPS = 2.0
_FEWER_RATIO = 0.5
_WAITED_RATIO = 0.2
# stages during which other processes wait for samples
_MARKED: Mapping[str, BoundBy] = {"tool": "tool", "environment": "tool", "reward": "reward"}

SAMPLES, TOOL, SYNC, STALE, ACTIVE = "samples", "tool call", "weight sync", "stale", "active"
RECEIVER_METRIC = "dfx_weight_update_seconds"
# metrics of frameworks that the causes use
REPORTED_METRICS = frozenset(
    {"dfx_step_stale_samples", "dfx_queue_depth", "dfx_tool_seconds", "dfx_turns",
     "dfx_request_latency_seconds", RECEIVER_METRIC}
)  # fmt: skip


def observe_steps(habits: FigureHistories, rows: Iterable[StepRow]) -> None:
    """Add the figures of steps that have closed since the last call."""
    for row in rows:
        parts = weight_sync_parts(row)
        habits.add(SYNC, row.step, sum(parts.values()))
        for part, seconds in parts.items():
            habits.add(part, row.step, seconds)
        waits = [waited_for_samples(cell) for cell in row.cells]
        habits.add(SAMPLES, row.step, fmean(waits) if waits else None)


def observe_reported(habits: FigureHistories, window: PipelineWindow) -> None:
    """Add the figures that frameworks reported at the latest step."""
    step = window.last.step
    habits.add(TOOL, step, _call_seconds(window))
    habits.add(
        STALE,
        step,
        reported_value(window.reported, "dfx_step_stale_samples", action="evicted_groups"),
    )
    habits.add(ACTIVE, step, reported_value(window.reported, "dfx_queue_depth", queue="active"))
    for process in window.last.processes.values():
        for stage, seconds in process.stage_seconds.items():
            habits.add(_stage_key(process, stage), step, seconds)


def _stage_key(process: ProcessTime, stage: str) -> str:
    return f"{stage} of {process.role} {process.rank}"


def causes(
    window: PipelineWindow,
    habits: FigureHistories,
    waited: Change | None,
    slow: Iterable[PipelineCause],
) -> list[PipelineCause]:
    """Causes of lost time; one that delays others comes first.

    ``waited``: change of the wait for samples. ``slow``: engines that are slower than others.
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


def _held_loops(window: PipelineWindow) -> Iterator[PipelineCause]:
    """Event loops that code of the job blocks in most steps."""
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


def _late_by_step(window: PipelineWindow, process: ProcessTime) -> Iterator[float]:
    """Lateness of the event loop per step, between each two moments of the window."""
    for before, after in pairwise(window.moments):
        pair = [moment.processes.get((process.role, process.rank)) for moment in (before, after)]
        loops = [member.event_loop for member in pair if member is not None and member.event_loop]
        if len(loops) == 2:
            late = loops[1].late_seconds_total - loops[0].late_seconds_total
            yield max(0.0, late) / (after.step - before.step)


def _held_by(loop: EventLoopRow, step_seconds: float) -> tuple[float, str]:
    """(share of the lateness that code of the job causes, the code that causes most)."""
    total = max(loop.late_seconds, sum(holder.seconds for holder in loop.holders))
    named = [
        holder
        for holder in loop.holders
        if holder.is_named_code and holder.seconds >= _HOLDER_SHARE * total
    ]
    share = sum(holder.seconds for holder in named) / total if total else 0.0
    if share < _JOB_SHARE:
        return _held_by_one(loop, step_seconds)
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return share, named[0].name + more


def _held_by_one(loop: EventLoopRow, step_seconds: float) -> tuple[float, str]:
    """As ``_held_by``, for a loop that mostly waits for a CPU: one coroutine that blocks it long.

    A coroutine also blocks the loop while it waits for a CPU itself. If only the host is busy, many
    places block the loop, each for a short time.
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
    longest = max((holder.seconds / max(1, holder.num_times) for holder in most), default=0.0)
    if share < _COROUTINE_SHARE or longest * total < _LONG_HOLD_RATIO * step_seconds * code_seconds:
        return 0.0, ""
    return share, max(most, key=lambda holder: holder.seconds).name


def _sum_seconds(holders: Iterable[LoopHolder]) -> float:
    return sum(holder.seconds for holder in holders)


def _coroutine(holder: LoopHolder) -> str:
    """Task and coroutine of a holder, without the function that was running."""
    return " > ".join(holder.name.split(" > ")[:2])


def _weight_sync(window: PipelineWindow, habits: FigureHistories) -> Iterator[PipelineCause]:
    least = _GROWN_RATIO * window.step_seconds
    parts = weight_sync_parts(window.rows[-1])
    change = habits[SYNC].change(least)
    grown = {part: found for part in parts if (found := habits[part].change(least / 2))}
    seconds = median(sum(weight_sync_parts(row).values()) for row in window.rows)
    if change is None and seconds < _SYNC_RATIO * window.step_seconds:
        return
    part = max(grown, key=lambda name: grown[name].excess, default="") if change else ""
    part = part or max(parts, key=lambda name: parts[name], default=WEIGHT_SYNC)
    of_part = grown[part].now if part in grown else parts.get(part, 0.0)
    yield _sync_cause(window, change, seconds, part.removeprefix(WEIGHT_SYNC).strip("_"), of_part)


def _sync_cause(
    window: PipelineWindow, change: Change | None, seconds: float, part: str, part_seconds: float
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


def _slow_receiver(window: PipelineWindow, part: str) -> tuple[str, str] | None:
    """The receiver that is much slower than the others in this part, else None."""
    seconds_by_receiver = {
        dict(key.labels).get("receiver", ""): value
        for key, value in window.reported.items()
        if key.metric == RECEIVER_METRIC and ("part", part) in key.labels
    }
    seconds = {receiver: value for receiver, value in seconds_by_receiver.items() if receiver}
    if len(seconds) < 2:
        return None
    *others, (slowest, name) = sorted((value, receiver) for receiver, value in seconds.items())
    usual = others[len(others) // 2][0]
    if slowest < 2 * usual or slowest - usual < _GROWN_RATIO * window.step_seconds:
        return None
    receiver = f"rollout replica {name}"
    return receiver, f"{seconds_text(slowest)} to {receiver}, {seconds_text(usual)} to the others"


def _tools(window: PipelineWindow, habits: FigureHistories) -> Iterator[PipelineCause]:
    tool = reported_value(window.reported, "dfx_tool_seconds", stat="mean")
    generation = reported_value(window.reported, "dfx_request_latency_seconds", stat="mean")
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


def _marked(window: PipelineWindow, habits: FigureHistories) -> Iterator[PipelineCause]:
    """Slow tools and rewards that the job marks as stages, while the trainer waits for samples."""
    if window.shares.ratio("rollout") < _WAITED_RATIO:
        return
    for process in window.last.processes.values():
        seconds_by_stage = process.stage_seconds
        longest = max(seconds_by_stage.values(), default=0.0)
        for stage in sorted(_MARKED.keys() & seconds_by_stage):
            change = habits[_stage_key(process, stage)].change(_GROWN_RATIO * window.step_seconds)
            has_doubled = change is not None and change.now >= 2 * change.usual
            seconds = seconds_by_stage[stage]
            is_long = seconds >= _TOOL_RATIO * max(longest, window.step_seconds)
            if has_doubled or is_long:
                yield _marked_cause(process, stage, seconds, change if has_doubled else None)


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


def _call_seconds(window: PipelineWindow) -> float | None:
    """Seconds of one tool call, or of all calls of a sample if turns are not reported."""
    tool = reported_value(window.reported, "dfx_tool_seconds", stat="mean")
    turns = reported_value(window.reported, "dfx_turns", stat="mean")
    if tool is None:
        return None
    return tool / (turns - 1) if turns is not None and turns > 1 else tool


def _stale(habits: FigureHistories) -> Iterator[PipelineCause]:
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


def _few_in_flight(habits: FigureHistories, waited: Change | None) -> Iterator[PipelineCause]:
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
