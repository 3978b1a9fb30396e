"""What the work of a job itself brings about, and no rank: an uneven partition, uneven batches."""

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
_MOST_OFTEN = 0.5  # of the steps, that the same ranks are longest: more is no matter of batches
_ALIKE = 0.5  # correlation of the stages of a pipeline, of which all work on the same batches
_MARKED = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """Nobody's fault: ``word`` is stable, ``seconds`` are what an even share would save a step."""

    word: str
    text: str
    seconds: float
    stage: str = ""


class Workload:
    """Seconds that each rank worked in each step, as far as it is sure that it worked.

    Where most work lies in marked stages, what is outside of all stages may be a wait that nobody
    recorded.
    """

    def __init__(self, steps: Sequence[Step], division: Division) -> None:
        self._steps = steps[-_MOST_STEPS:]
        self._division = division
        rows = [of for step in steps[-_FEWEST_STEPS:] for of in step.ranks.values()]
        worked = sum(of.work_seconds for of in rows)
        self.is_marked = sum(map(_in_stages, rows)) >= _MARKED * worked

    @cached_property
    def _table(self) -> dict[str, list[float]]:
        """By rank, oldest step first; only made where it is asked: a plain job needs none."""
        return {
            label: [self._sure(step.ranks[label]) for step in self._steps]
            for label in self._steps[-1].ranks
        }

    def cost_seconds(self, excess: Mapping[str, float], num_steps: int) -> dict[str, float]:
        """How much of the excess of each of these ranks makes the newest steps longer.

        Who works less than another stage in any case holds nobody up with a part of it.
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
        """Without what is outside of all stages, where that may be a wait."""
        return excess_seconds - max(0.0, outside_seconds) if self.is_marked else excess_seconds

    def findings(self, step_seconds: float) -> list[Finding]:
        """Of those that cost a step enough, the dearest first."""
        least = SMALLEST_SHARE * step_seconds
        found = [self._partition(least), self._batches(least)]
        told = [finding for finding in found if finding is not None]
        return sorted(told, key=lambda finding: -finding.seconds)

    def _sure(self, of: RankStep) -> float:
        outside = of.parts.get(IDLE, 0.0) if self.is_marked else 0.0
        return of.wall_seconds - of.waited_seconds - outside

    def _partition(self, least_seconds: float) -> Finding | None:
        """One stage of the pipeline has more to do than the mean of all."""
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
        return Finding(PARTITION, text, more, name)

    def _batches(self, least_seconds: float) -> Finding | None:
        """Each step another rank is longest: what they were given differs, not they."""
        has_tokens = all(of.num_tokens for of in self._steps[-1].ranks.values())
        chains = self._division.chains
        if len(self._steps) < _FEWEST_STEPS or not (has_tokens or chains):
            return None
        longest, beyond = [], []
        for at in range(len(self._steps)):
            row = {label: seconds[at] for label, seconds in self._table.items()}
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
        return Finding(BATCHES, text, more)

    def _why_batches(self, *, has_tokens: bool) -> str:
        """How it is known that it is the batches; "" where it is not."""
        if has_tokens and self._by_tokens() >= _ALIKE:
            return "ranks with more tokens work longer"
        if self._division.chains and self._by_stages() >= _ALIKE:
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
        """Of what a rank works beyond its peers with the same of the stage before its own."""
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


def _in_stages(of: RankStep) -> float:
    return sum(seconds for (kind, _), seconds in of.parts.items() if kind == "stage")


def _apart(values: Sequence[float]) -> list[float]:
    middle = median(values)
    return [value - middle for value in values]


def _correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """0 where one of both does not vary."""
    if not pairs:
        return 0.0
    xs, ys = zip(*pairs, strict=True)
    mean_x, mean_y = fmean(xs), fmean(ys)
    varied = [sum((v - mean) ** 2 for v in vs) for vs, mean in ((xs, mean_x), (ys, mean_y))]
    product = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return product / (varied[0] * varied[1]) ** 0.5 if min(varied) > 0 else 0.0
