"""Finds causes of waits that are no fault of a rank: an uneven partition, uneven batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.steps import IDLE, RankStep, Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.comparable_ranks import Division
from dfx_agent.judge.straggler.excess import middle_mean
from dfx_agent.judge.straggler.single_steps import SMALLEST_SHARE

PARTITION, BATCHES = "partition", "batches"

_LEAST_RATIO = 1.1
_FEWEST_STEPS, _MOST_STEPS = 5, 20
_MOST_OFTEN = 0.5  # share of steps; if the same ranks take longest more often, batches are no cause
_LEAST_CORRELATION = 0.5  # of work with tokens, or of one pipeline stage with the one before
_MARKED = 0.5


@dataclass(frozen=True, slots=True)
class UnevenWork:
    """Uneven work that is no fault of a rank."""

    word: str
    """Stable word; cause of the verdict."""
    text: str
    seconds: float
    """What even work would save per step."""
    stage: str = ""


class Workload:
    """Certain work of each rank in each step, in seconds.

    If most work is in marked stages, time outside all stages may be an unrecorded wait and does not
    count.
    """

    def __init__(self, steps: Sequence[Step], division: Division) -> None:
        self._steps = steps[-_MOST_STEPS:]
        self._division = division
        rows = [rank_step for step in steps[-_FEWEST_STEPS:] for rank_step in step.ranks.values()]
        worked = sum(rank_step.work_seconds for rank_step in rows)
        self.is_marked = sum(map(_in_stages, rows)) >= _MARKED * worked

    @cached_property
    def _table(self) -> dict[str, list[float]]:
        """Certain work by rank, oldest step first. Computed only if needed."""
        return {
            label: [self._sure(step.ranks[label]) for step in self._steps]
            for label in self._steps[-1].ranks
        }

    def cost_seconds(self, excess: Mapping[str, float], num_steps: int) -> dict[str, float]:
        """How much of the excess of each rank makes the latest steps longer.

        Excess counts only as far as the rank works longer than all other ranks would without
        excess.
        """
        lately = {label: middle_mean(row[-num_steps:]) for label, row in self._table.items()}
        others = max(
            seconds - max(0.0, excess.get(label, 0.0)) for label, seconds in lately.items()
        )
        return {
            label: min(seconds, max(0.0, lately[label] - others))
            for label, seconds in excess.items()
        }

    def sure_excess(self, excess_seconds: float, outside_seconds: float) -> float:
        """The excess without time outside all stages, if that may be a wait."""
        return excess_seconds - max(0.0, outside_seconds) if self.is_marked else excess_seconds

    def findings(self, step_seconds: float) -> list[UnevenWork]:
        """Findings that cost at least 5 % of a step, the most expensive first."""
        least = SMALLEST_SHARE * step_seconds
        candidates = [self._partition(least), self._batches(least)]
        found = [finding for finding in candidates if finding is not None]
        return sorted(found, key=lambda finding: -finding.seconds)

    def _sure(self, rank_step: RankStep) -> float:
        outside = rank_step.parts.get(IDLE, 0.0) if self.is_marked else 0.0
        return rank_step.wall_seconds - rank_step.waited_seconds - outside

    def _partition(self, least_seconds: float) -> UnevenWork | None:
        """The finding on a pipeline stage with more work than the others, else None."""
        by_stage: dict[int, list[float]] = {}
        for label, stage in self._division.stages.items():
            by_stage.setdefault(stage, []).append(middle_mean(self._table[label]))
        if not by_stage:
            return None
        had = {stage: median(seconds) for stage, seconds in by_stage.items()}
        worst = max(had, key=lambda stage: had[stage])
        others = fmean(seconds for stage, seconds in had.items() if stage != worst)
        more = had[worst] - fmean(had.values())
        if had[worst] < _LEAST_RATIO * others or more < least_seconds:
            return None
        name = f"pipeline stage {sorted(had).index(worst) + 1} of {len(had)}"
        ratio = f"{had[worst] / others:.2g} times the work" if others > 0 else "all the work"
        text = sentences.PARTITION(stage=capitalized(name), ratio=ratio, seconds=seconds_text(more))
        return UnevenWork(PARTITION, text, more, name)

    def _batches(self, least_seconds: float) -> UnevenWork | None:
        """The finding on uneven batches: in each step another rank takes longest. Else None."""
        has_tokens = all(rank_step.num_tokens for rank_step in self._steps[-1].ranks.values())
        chains = self._division.chains
        if len(self._steps) < _FEWEST_STEPS or not (has_tokens or chains):
            return None
        longest, beyond = [], []
        for index in range(len(self._steps)):
            row = {label: seconds[index] for label, seconds in self._table.items()}
            longest.append(max(row, key=row.__getitem__))
            usual = max(median(map(row.__getitem__, cell)) for cell in self._division.cells)
            beyond.append(row[longest[-1]] - usual)
        more, often = middle_mean(beyond), Counter(chains.get(label, label) for label in longest)
        if more < least_seconds or max(often.values()) > _MOST_OFTEN * len(self._steps):
            return None
        why = self._why_batches(has_tokens=has_tokens)
        if not why:
            return None
        text = sentences.BATCHES(seconds=seconds_text(more), why=why)
        return UnevenWork(BATCHES, text, more)

    def _why_batches(self, *, has_tokens: bool) -> str:
        """Why batches are the cause; "" if they are not."""
        if has_tokens and self._by_tokens() >= _LEAST_CORRELATION:
            return "ranks with more tokens work longer"
        if self._division.chains and self._by_stages() >= _LEAST_CORRELATION:
            return "all stages that a batch passes take longer together"
        return ""

    def _by_tokens(self) -> float:
        pairs: list[tuple[float, float]] = []
        for cell in self._division.cells:
            for at, step in enumerate(self._steps):
                counts = [step.ranks[label].num_tokens or 0.0 for label in cell]
                seconds = [self._table[label][at] for label in cell]
                pairs += zip(_apart(counts), _apart(seconds), strict=True)
        return _correlation(pairs)

    def _by_stages(self) -> float:
        """Correlation of the excess of a rank with that of the stage before it."""
        own: dict[tuple[str, int], list[float]] = {}
        for cell in self._division.cells:
            columns = [
                _apart([self._table[label][at] for label in cell]) for at in range(len(self._steps))
            ]
            for label, row in zip(cell, zip(*columns, strict=True), strict=True):
                key = self._division.chains[label], self._division.stages[label]
                own[key] = list(row)
        pairs = [
            pair
            for (chain, stage), row in own.items()
            for pair in zip(own.get((chain, stage - 1), ()), row, strict=False)
        ]
        return _correlation(pairs)


def _in_stages(rank_step: RankStep) -> float:
    return sum(seconds for (kind, _), seconds in rank_step.parts.items() if kind == "stage")


def _apart(values: Sequence[float]) -> list[float]:
    middle = median(values)
    return [value - middle for value in values]


def _correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Correlation coefficient; 0 if one of both does not vary."""
    if not pairs:
        return 0.0
    xs, ys = zip(*pairs, strict=True)
    mean_x, mean_y = fmean(xs), fmean(ys)
    varied = [sum((v - mean) ** 2 for v in vs) for vs, mean in ((xs, mean_x), (ys, mean_y))]
    product = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return product / (varied[0] * varied[1]) ** 0.5 if min(varied) > 0 else 0.0
