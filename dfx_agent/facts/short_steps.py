"""Combines short steps, so that what is judged lasts longer than random delays on a busy host.

The scheduler often assigns the same CPUs for a tenth of a second. A rank without a CPU is then late
in many steps of a few milliseconds, and none of them says anything about the rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import mul
from statistics import fmean
from typing import TypeVar

from dfx_agent.facts.steps import LEAST_SECONDS, GroupTime, RankStep, SchedTimes, Step

_Name = TypeVar("_Name")


class ShortSteps:
    """Combines the short steps of one role; call ``take`` for each step as it closes."""

    def __init__(self, least_seconds: float = LEAST_SECONDS) -> None:
        self._least_seconds = least_seconds
        self._pending: list[Step] = []
        self._seconds = 0.0

    def take(self, step: Step) -> Step | None:
        """The step, or the mean of it and earlier ones, if it is long enough to be judged."""
        if self._pending and self._pending[-1].ranks.keys() != step.ranks.keys():
            self.clear()
        self._pending.append(step)
        shortest = min(rank_step.wall_seconds for rank_step in step.ranks.values())
        self._seconds += step.num_steps * shortest
        if self._seconds < self._least_seconds:
            return None
        pending = self._pending
        self.clear()
        return mean_step(pending) if len(pending) > 1 else step

    def clear(self) -> None:
        """Drop the steps that were not returned yet."""
        self._pending, self._seconds = [], 0.0


def mean_step(steps: list[Step]) -> Step:
    """Mean of steps with the same ranks, oldest first."""
    weights = [step.num_steps for step in steps]
    ranks = {rank: _mean([step.ranks[rank] for step in steps], weights) for rank in steps[0].ranks}
    last = steps[-1]
    return Step(last.step, steps[0].begin_seconds, last.num_lost, ranks, sum(weights))


def _mean(steps: list[RankStep], weights: Sequence[int]) -> RankStep:
    return RankStep(
        _weighted_mean([step.wall_seconds for step in steps], weights),
        _weighted_mean([step.waited_seconds for step in steps], weights),
        _mean_by_name([step.parts for step in steps], weights),
        _mean_tokens([step.tokens for step in steps], weights),
        _mean_if_complete([step.num_forward_tokens for step in steps], weights),
        _mean_if_complete([step.busy_seconds for step in steps], weights),
        _mean_times([step.processor for step in steps], weights),
        _mean_groups([step.groups for step in steps], weights),
        _mean_by_name([step.waits for step in steps], weights),
        _mean_if_complete([step.num_samples for step in steps], weights),
    )


def _weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return float(sum(map(mul, values, weights))) / sum(weights)


def _mean_groups(
    groups: list[Mapping[str, GroupTime]], weights: Sequence[int]
) -> dict[str, GroupTime]:
    """Mean seconds by group, with the number of all collectives and their last number."""
    rows = list(zip(groups, weights, strict=True))
    names = dict.fromkeys(name for by_group in groups for name in by_group)
    times_by_name = {
        name: [(by_group[name], weight) for by_group, weight in rows if name in by_group]
        for name in names
    }
    return {
        name: GroupTime(
            sum(time.num_collectives for time, _ in times),
            max(time.latest for time, _ in times),
            sum(time.blocked_seconds * weight for time, weight in times) / sum(weights),
        )
        for name, times in times_by_name.items()
    }


def _mean_by_name(
    values: Sequence[Mapping[_Name, float]], weights: Sequence[int]
) -> dict[_Name, float]:
    """Mean by name; a step without this name counts as 0."""
    names = dict.fromkeys(name for by_name in values for name in by_name)
    return {
        name: _weighted_mean([by_name.get(name, 0.0) for by_name in values], weights)
        for name in names
    }


def _mean_tokens(
    tokens: list[Mapping[str, float] | None], weights: Sequence[int]
) -> dict[str, float] | None:
    by_kind = [kinds for kinds in tokens if kinds]
    return _mean_by_name(by_kind, weights) if len(by_kind) == len(tokens) else None


def _mean_if_complete(values: list[float | None], weights: Sequence[int]) -> float | None:
    numbers = [value for value in values if value is not None]
    return _weighted_mean(numbers, weights) if len(numbers) == len(values) else None


def _mean_times(times: list[SchedTimes | None], weights: Sequence[int]) -> SchedTimes | None:
    complete = [sched for sched in times if sched is not None]
    if len(complete) < len(times):
        return None
    crowds = [sched.crowd for sched in complete if sched.crowd is not None]
    return SchedTimes(
        round(_weighted_mean([sched.ran_ns for sched in complete], weights)),
        round(_weighted_mean([sched.delayed_ns for sched in complete], weights)),
        fmean(crowds) if crowds else None,
        round(_weighted_mean([sched.system_ns for sched in complete], weights)),
        round(_weighted_mean([sched.num_faults for sched in complete], weights)),
    )
