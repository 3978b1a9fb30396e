"""Decides whether training and rollout of a job run in parallel or take turns."""

from __future__ import annotations

from collections.abc import Iterator

from dfx_agent.facts.seat import ROLLOUT_SIDE
from dfx_agent.judge.bottleneck.step_parts import UPDATE, StepPartKey, StepTime, step_time
from dfx_agent.judge.bottleneck.window import PipelineWindow
from dfx_agent.snapshot import TimeSplit

_ROLLOUT_STAGES = ("rollout", "generate", "tool", "environment", "reward")
# waits of a process that passes work to others
_PIPELINE_WAITS = ("queue", "policy")
_OVERLAP_RATIO = 0.1
_LEAST_UPDATE_RATIO = 0.1


def has_two_sides(window: PipelineWindow) -> bool:
    """Whether rollout continues while the trainer updates (asynchronous or off-policy training).

    If roles take turns (synchronous training), their shares of the time add up to at most 1. If the
    rollout side is not measured, the answer is True.
    """
    shares = list(_rollout_shares(window))
    if not shares:
        return False
    trained = _trained_ratio(step_time(cell.split for row in window.rows for cell in row.cells))
    return any(share is None or share + trained - 1.0 > _OVERLAP_RATIO for share in shares)


def _rollout_shares(window: PipelineWindow) -> Iterator[float | None]:
    """Share of time that each process and engine spends in rollout; None if not measured."""
    before = {(process.role, process.rank): process for process in window.first.processes.values()}
    for key, process in window.last.processes.items():
        if process.role not in ROLLOUT_SIDE or process.role == window.role:
            continue
        first = before.get(key)
        share = _rollout_share(first.totals if first else TimeSplit(), process.totals)
        is_unmeasured = share is None and (
            not process.totals.wall_seconds or _hands_over(process.totals)
        )
        if share is not None or is_unmeasured:
            yield share
    for engine in window.last.engines.values():
        yield engine.busy_ratio


def _rollout_share(first: TimeSplit, last: TimeSplit) -> float | None:
    """Share of time in rollout; None if the process marks no rollout stage."""
    wall = last.wall_seconds - first.wall_seconds
    seconds = _rollout_seconds(last) - _rollout_seconds(first)
    return min(1.0, seconds / wall) if wall > 0 and _rollout_seconds(last) else None


def _rollout_seconds(split: TimeSplit) -> float:
    stages = split.stage_seconds.items()
    return sum(seconds for name, seconds in stages if name.startswith(_ROLLOUT_STAGES))


def _hands_over(totals: TimeSplit) -> bool:
    return any(kind in totals.wait_seconds for kind in _PIPELINE_WAITS)


def _trained_ratio(time: StepTime) -> float:
    """Share of a step that updates the model; if no stage is marked, all except waits."""
    update = time.seconds.get(StepPartKey(UPDATE, "work"), 0.0)
    ratio = update / time.step_seconds if time.step_seconds else 0.0
    return ratio if ratio >= _LEAST_UPDATE_RATIO else 1.0 - time.ratio("wait")
