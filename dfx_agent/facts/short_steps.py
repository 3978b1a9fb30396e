"""Several short steps as one, so that what is judged lasts longer than luck on a busy host.

Which thread has a CPU often stays the same for a tenth of a second. Steps of a few milliseconds are
then late one after the other, and none of them says anything about the rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import mul
from statistics import fmean

from dfx_agent.facts.processor import SchedTimes
from dfx_agent.facts.steps import LEAST_SECONDS, GroupTime, Part, RankStep, Step


class ShortSteps:
    """Of one role; ``take`` each step as it closes."""

    def __init__(self, least_seconds: float = LEAST_SECONDS) -> None:
        self._least_seconds = least_seconds
        self._gathered: list[Step] = []
        self._seconds = 0.0

    def take(self, step: Step) -> Step | None:
        """What can be judged now: this step, or the mean of it and of those before it."""
        if self._gathered and self._gathered[-1].ranks.keys() != step.ranks.keys():
            self.clear()
        self._gathered.append(step)
        self._seconds += step.num_steps * min(of.wall_seconds for of in step.ranks.values())
        if self._seconds < self._least_seconds:
            return None
        gathered = self._gathered
        self.clear()
        return mean_step(gathered) if len(gathered) > 1 else step

    def clear(self) -> None:
        """Forget what was gathered and not yet given."""
        self._gathered, self._seconds = [], 0.0


def mean_step(steps: list[Step]) -> Step:
    """Amounts of the mean step of these, which the same ranks have passed; oldest first."""
    weights = [step.num_steps for step in steps]
    ranks = {rank: _mean([step.ranks[rank] for step in steps], weights) for rank in steps[0].ranks}
    newest = steps[-1]
    return Step(newest.step, steps[0].begin_seconds, newest.num_lost, ranks, sum(weights))


def _mean(of: list[RankStep], weights: Sequence[int]) -> RankStep:
    return RankStep(
        _weighted_mean([each.wall_seconds for each in of], weights),
        _weighted_mean([each.waited_seconds for each in of], weights),
        _mean_parts([each.parts for each in of], weights),
        _known_mean([each.num_tokens for each in of], weights),
        _known_mean([each.num_forward_tokens for each in of], weights),
        _known_mean([each.busy_seconds for each in of], weights),
        _mean_times([each.processor for each in of], weights),
        _mean_groups([each.groups for each in of], weights),
    )


def _weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return float(sum(map(mul, values, weights))) / sum(weights)


def _mean_groups(
    groups: list[Mapping[str, GroupTime]], weights: Sequence[int]
) -> dict[str, GroupTime]:
    """Seconds of the mean step; the number of all collectives, and the last of their numbers."""
    rows = list(zip(groups, weights, strict=True))
    names = dict.fromkeys(name for each in groups for name in each)
    known = {name: [(each[name], weight) for each, weight in rows if name in each]
             for name in names}  # fmt: skip
    return {
        name: GroupTime(
            sum(time.num_collectives for time, _ in times),
            max(time.newest for time, _ in times),
            sum(time.blocked_seconds * weight for time, weight in times) / sum(weights),
        )
        for name, times in known.items()
    }


def _mean_parts(parts: list[Mapping[Part, float]], weights: Sequence[int]) -> dict[Part, float]:
    names = dict.fromkeys(name for each in parts for name in each)
    return {
        name: _weighted_mean([each.get(name, 0.0) for each in parts], weights) for name in names
    }


def _known_mean(values: list[float | None], weights: Sequence[int]) -> float | None:
    known = [value for value in values if value is not None]
    return _weighted_mean(known, weights) if len(known) == len(values) else None


def _mean_times(times: list[SchedTimes | None], weights: Sequence[int]) -> SchedTimes | None:
    known = [each for each in times if each is not None]
    if len(known) < len(times):
        return None
    crowds = [each.crowd for each in known if each.crowd is not None]
    return SchedTimes(
        round(_weighted_mean([each.ran_ns for each in known], weights)),
        round(_weighted_mean([each.delayed_ns for each in known], weights)),
        fmean(crowds) if crowds else None,
        round(_weighted_mean([each.system_ns for each in known], weights)),
        round(_weighted_mean([each.num_faults for each in known], weights)),
    )
