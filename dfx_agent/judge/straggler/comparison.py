"""Ranks that do the same work, over the newest steps: who worked longer, and what it costs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

from dfx_agent.durations import seconds_text
from dfx_agent.facts.steps import RankStep, Step
from dfx_agent.judge.straggler import busy_host
from dfx_agent.judge.straggler.causes import (
    HOST_STALL,
    MIN_TOKEN_SHARE,
    Cause,
    excess_parts,
    find_cause,
    part_lines,
)
from dfx_agent.judge.straggler.columns import Columns
from dfx_agent.judge.straggler.excess import (
    FIRST_WINDOW,
    WINDOWS,
    View,
    Window,
    busy,
    middle_mean,
    num_alike,
    others_median,
    reach_seconds,
    recurs,
    views,
)
from dfx_agent.judge.words import BUSY_HOST, labels_text
from dfx_agent.snapshot import Verdict

SMALLEST_SHARE = 0.05
MIN_EFFECT = 0.5
TOGETHER_SHARE = 0.7
_MOST_SHARE = 1 / 3  # of the ranks: more than that are no faults of ranks
_NUM_ALWAYS_TOLD = 2
_STALL_SHARE = 0.5
_STALL_SIGMAS = 6.0
_FEWEST_STALLS = 2  # of one rank, in the steps that are kept
_NUM_NEWEST = 5
_SAME_SIGMAS = 3.0
BLIND_SHARE = 0.25


def abstained(role: str, reason: str) -> Verdict:
    """Where the host did not let the ranks run."""
    return Verdict("straggler", "insufficient evidence", role, reason, cause=BUSY_HOST)


def too_many(role: str, slow: Sequence[str], num_ranks: int) -> Verdict | None:
    """Instead of blame, where what is slow can be no fault of ranks; None where it can."""
    if len(slow) <= max(_NUM_ALWAYS_TOLD, _MOST_SHARE * num_ranks):
        return None
    return Verdict(
        "straggler",
        "insufficient evidence",
        role,
        f"{len(slow)} of {num_ranks} ranks work longer than the others: too many for faults of "
        "ranks, their work may differ",
        evidence=(labels_text(slow),),
    )


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank whose excess is large and recurrent; seconds per step, means over the newest steps."""

    rank: str
    window: Window
    num_steps: int
    excess_seconds: float
    lost_seconds: float
    token_seconds: float | None


class Comparison:
    """At least two ranks over the newest steps, the same ranks in each.

    ``named``: those that are stragglers already. ``columns``: what is remembered of these steps.
    """

    def __init__(
        self, role: str, steps: Sequence[Step], named: Collection[str], columns: Columns
    ) -> None:
        self._role = role
        self._named = named
        self._steps = steps
        self._views = views(steps, columns)
        self._excess = self._views[0].table
        self._tokens = self._views[min(1, len(self._views) - 1)].tokens
        newest = steps[-_NUM_NEWEST:]
        fitting = [window for window in WINDOWS if window.num_steps <= len(steps)]
        self._windows = fitting or [FIRST_WINDOW]
        self._step_seconds = median(r.wall_seconds for s in newest for r in s.ranks.values())

    @property
    def ranks(self) -> tuple[str, ...]:
        return tuple(self._excess)

    def verdict(self) -> Verdict:
        """Of ranks that are all that is judged."""
        reason = busy_host.reason_to_abstain(self._steps, self._step_seconds)
        if reason:
            return abstained(self._role, reason)
        suspects = self.suspects()
        if suspects:
            all_of = too_many(self._role, _together(suspects), len(self._excess))
            return self.refused(suspects) or all_of or self.found(suspects)
        return self.single_steps() or self.nothing()

    def suspects(self) -> list[Suspect]:
        """Of the first window in which there are any."""
        for window in self._windows:
            suspects = [s for rank in self._excess if (s := self._suspect(rank, window))]
            if suspects:
                return suspects
        return []

    def single_steps(self) -> Verdict | None:
        """Where a rank held the others up, but not step after step."""
        return self._now_and_then() or self._stall()

    def refused(self, suspects: Sequence[Suspect]) -> Verdict | None:
        """Instead of blame, where the worst was refused a processor for as long as it was late."""
        worst = max(suspects, key=lambda suspect: suspect.excess_seconds)
        steps = self._steps[-worst.num_steps :]
        late = steps, worst.rank, worst.excess_seconds
        reason = busy_host.explained(*late) or busy_host.overshadowed(*late)
        if not reason:
            return None
        return abstained(self._role, reason)

    def _suspect(self, rank: str, window: Window) -> Suspect | None:
        if rank in self._named:
            window = window.to_stay()
        recurring = [
            view
            for view in self._views
            if recurs(view.table[rank], window, view.sigmas[rank], self._step_seconds)
        ]
        if not recurring:
            return None
        newest = self._excess[rank][-window.num_steps :]
        num_steps = num_alike(newest, self._views[0].sigmas[rank])
        excess = middle_mean(self._excess[rank][-num_steps:])
        lately = max(median(view.table[rank][-_NUM_NEWEST:]) for view in recurring)
        lost = middle_mean(_lost_seconds(step, rank) for step in self._steps[-num_steps:])
        if min(excess, lately) < window.share * self._step_seconds or lost < MIN_EFFECT * excess:
            return None
        tokens = None
        if self._tokens is not None:
            tokens = middle_mean(self._tokens.seconds[rank][-num_steps:])
        if tokens is None or tokens < MIN_TOKEN_SHARE * excess:
            lost = min(1.0, lost / excess) * self._amount(rank, num_steps, recurring)
        return Suspect(rank, window, num_steps, excess, lost, tokens)

    def _amount(self, rank: str, num_steps: int, recurring: Sequence[View]) -> float:
        """Seconds by the steadiest view, unless the wall time of the same steps denies it."""
        sharp = min(recurring, key=lambda view: view.sigmas[rank])
        alike = [v for v in self._views if (v.tokens is None) == (sharp.tokens is None)]
        seconds, whole = (middle_mean(v.table[rank][-num_steps:]) for v in (sharp, alike[0]))
        chance = alike[0].sigmas[rank] / sqrt(num_steps)
        return seconds if abs(seconds - whole) <= _SAME_SIGMAS * chance else whole

    def found(self, suspects: Sequence[Suspect]) -> Verdict:
        worst = max(suspects, key=lambda suspect: suspect.excess_seconds)
        ranks = _together(suspects)
        cause = self.cause(worst)
        verb = "makes" if len(ranks) == 1 else "make"
        share = worst.lost_seconds / self._step_seconds
        return Verdict(
            kind="straggler",
            state="found",
            role=self._role,
            summary=f"{labels_text(ranks)} {verb} the others wait "
            f"{seconds_text(worst.lost_seconds)} a step ({share:.0%} of it): {cause.text}",
            ranks=ranks,
            stage=cause.stage,
            cause=cause.word,
            step=self._steps[-1].step,
            since_seconds=self.since_seconds(worst),
            lost_seconds=worst.lost_seconds,
            evidence=tuple(self.evidence(worst, cause)),
        )

    def cause(self, worst: Suspect) -> Cause:
        parts = excess_parts(self._steps[-worst.num_steps :], worst.rank)
        return find_cause(parts, worst.excess_seconds, worst.token_seconds)

    def since_seconds(self, worst: Suspect) -> float:
        """Begin of the first step of the unbroken row; one step in between may be better."""
        since, num_misses = self._steps[-1].begin_seconds, 0
        rows = zip(self._steps, self._excess[worst.rank], strict=True)
        for step, excess in reversed(list(rows)):
            if excess < SMALLEST_SHARE * self._step_seconds:
                num_misses += 1
                if num_misses > 1:
                    break
            else:
                since, num_misses = step.begin_seconds, 0
        return since

    def evidence(self, worst: Suspect, cause: Cause) -> list[str]:
        num_steps, rank = worst.num_steps, worst.rank
        of_steps = f"median of {span(self._steps[-num_steps:])}"
        waited = self._medians(num_steps, lambda of: of.waited_seconds)
        worked = self._medians(num_steps, lambda of: of.work_seconds)
        lines = [
            f"rank {rank} waited {_versus(waited, rank)} for peers, {of_steps}",
            f"rank {rank} worked {_versus(worked, rank)}, {of_steps}",
            self._recurrence_line(worst),
        ]
        if worst.token_seconds is None or self._tokens is None:
            lines.append("tokens are not known: the same work is assumed")
        else:
            tokens = self._medians(num_steps, self._tokens.count_of)
            others = [count for label, count in tokens.items() if label != rank]
            between = f"{min(others):.0f} to {max(others):.0f}"
            explained = seconds_text(max(0.0, worst.token_seconds))
            lines.append(
                f"rank {rank} had {tokens[rank]:.0f} {self._tokens.words}, the others {between}: "
                f"that explains "
                f"{explained} of {seconds_text(worst.excess_seconds)}"
            )
        if all(busy(of) for of in self._steps[-1].ranks.values()):
            had = self._medians(num_steps, lambda of: busy(of) or 0.0)
            lines.append(f"rank {rank} had a processor for {_versus(had, rank)}, {of_steps}")
        return [*lines, *cause.lines]

    def _recurrence_line(self, worst: Suspect) -> str:
        newest = self._excess[worst.rank][-worst.num_steps :]
        least = worst.window.share * self._step_seconds
        num_hits = sum(excess >= least for excess in newest)
        return (
            f"more work by at least {seconds_text(least)} in {num_hits} of the last "
            f"{span(self._steps[-len(newest) :])}; a step takes {seconds_text(self._step_seconds)}"
        )

    def _medians(self, num_steps: int, measure: Callable[[RankStep], float]) -> dict[str, float]:
        newest = self._steps[-num_steps:]
        return {rank: median(measure(s.ranks[rank]) for s in newest) for rank in self._excess}

    def _stalls(self, num_newest: int) -> list[tuple[float, str, Step]]:
        """Excess, rank and step where all waited long for one rank, oldest first for each."""
        # of the wall time, at equal tokens if they are known
        table, sigmas, _ = self._views[0 if self._tokens is None else 1]
        least = {
            rank: max(_STALL_SHARE * self._step_seconds, _STALL_SIGMAS * sigmas[rank])
            for rank in table
        }
        return [
            (excess, rank, step)
            for rank, row in table.items()
            if max(row[-num_newest:]) >= least[rank]
            for step, excess in zip(
                self._steps[-len(row) :][-num_newest:], row[-num_newest:], strict=True
            )
            if excess >= least[rank] and _lost_seconds(step, rank) >= MIN_EFFECT * excess
        ]

    def _now_and_then(self) -> Verdict | None:
        """A rank that is late in one step of ten costs as much as one that is a little slow.

        No straggler: it may save or evaluate for all of them.
        """
        by_rank: dict[str, list[Step]] = {}
        for _, rank, step in self._stalls(len(self._steps)):
            by_rank.setdefault(rank, []).append(step)
        lost = {
            r: sum(_lost_seconds(step, r) * step.num_steps for step in late)
            for r, late in by_rank.items()
        }
        worst = max(lost, key=lambda rank: lost[rank], default="")
        num_steps = num_passed(self._steps)
        least = SMALLEST_SHARE * self._step_seconds * num_steps
        if not worst or len(by_rank[worst]) < _FEWEST_STALLS or lost[worst] < least:
            return None
        late = by_rank[worst]
        if self._is_over(worst, late):
            return None
        numbers = ", ".join(str(step.step) for step in late[-8:])
        return Verdict(
            kind="straggler",
            state="insufficient evidence",
            role=self._role,
            summary=f"rank {worst} held the others up in {len(late)} of the last "
            f"{span(self._steps)}, by {seconds_text(lost[worst] / len(late))} each: "
            f"{seconds_text(lost[worst] / num_steps)} a step on average, not step after step",
            ranks=(worst,),
            cause=HOST_STALL,
            step=late[-1].step,
            since_seconds=late[0].begin_seconds,
            evidence=(
                f"in steps {numbers}; a step takes {seconds_text(self._step_seconds)}",
                "one rank that saves or evaluates for all of them looks the same",
            ),
        )

    def _is_over(self, rank: str, late: Sequence[Step]) -> bool:
        """Whether it was late in all steps between, and not lately: it was a straggler."""
        begin, end = (self._steps.index(step) for step in (late[0], late[-1]))
        least = SMALLEST_SHARE * self._step_seconds
        is_row = all(excess >= least for excess in self._excess[rank][begin : end + 1])
        return is_row and end < len(self._steps) - _NUM_NEWEST

    def _stall(self) -> Verdict | None:
        """One step in which all waited long for one rank: told, but no straggler."""
        stalls = self._stalls(_NUM_NEWEST)
        if not stalls:
            return None
        excess, rank, step = max(stalls, key=lambda stall: stall[0])
        lost = seconds_text(_lost_seconds(step, rank) * step.num_steps)
        held_up = seconds_text(excess * step.num_steps)
        last = f"step {step.step}" if step.num_steps == 1 else f"{step.num_steps} short steps"
        parts = excess_parts([step], rank)
        whole = {part: seconds * step.num_steps for part, seconds in parts.items()}
        return Verdict(
            kind="straggler",
            state="insufficient evidence",
            role=self._role,
            summary=f"rank {rank} was held up by {held_up} in {last}, not step after step",
            ranks=(rank,),
            cause=HOST_STALL,
            step=step.step,
            since_seconds=step.begin_seconds,
            evidence=(
                f"the others waited {lost} longer than rank {rank} in {last}",
                *part_lines(whole, excess * step.num_steps),
            ),
        )

    def reach_seconds(self) -> float:
        """An excess that would have been seen."""
        window = self._windows[0]
        return min(
            reach_seconds(window, max(view.sigmas.values()), self._step_seconds)
            for view in self._views
        )

    def nothing(self) -> Verdict:
        """Clear, unless an excess would have to be huge to be seen."""
        num_steps, limit = self._windows[0].num_steps, self.reach_seconds()
        share = f"{seconds_text(limit)} ({limit / self._step_seconds:.0%} of a step)"
        waited = self._medians(num_steps, lambda of: of.waited_seconds).values()
        line = (
            f"each rank waited {_between(waited)} for peers in a step of "
            f"{seconds_text(self._step_seconds)}, median of {span(self._steps[-num_steps:])}"
        )
        if limit <= BLIND_SHARE * self._step_seconds:
            summary = f"no rank makes the others wait more than {share}"
            step = self._steps[-1].step
            return Verdict("straggler", "clear", self._role, summary, step=step, evidence=(line,))
        summary = (
            f"in {num_passed(self._steps)} steps the ranks differ too much by chance to see less "
            f"than {share}"
        )
        return Verdict("straggler", "insufficient evidence", self._role, summary, evidence=(line,))


def _together(suspects: Sequence[Suspect]) -> tuple[str, ...]:
    """The worst, and those that are about as much longer."""
    least = TOGETHER_SHARE * max(suspect.excess_seconds for suspect in suspects)
    return tuple(s.rank for s in suspects if s.excess_seconds >= least)


def num_passed(steps: Sequence[Step]) -> int:
    return sum(step.num_steps for step in steps)


def span(steps: Sequence[Step]) -> str:
    """``20 steps``; ``20 groups of about 31 steps`` where they are short."""
    num_steps = num_passed(steps)
    if num_steps == len(steps):
        return f"{num_steps} steps"
    return f"{len(steps)} groups of about {num_steps / len(steps):.0f} steps"


def _lost_seconds(step: Step, rank: str) -> float:
    """How much longer the others waited in this step."""
    waited = {label: of.waited_seconds for label, of in step.ranks.items()}
    return others_median(waited, rank) - waited[rank]


def _versus(seconds: Mapping[str, float], rank: str) -> str:
    others = [value for label, value in seconds.items() if label != rank]
    return f"{seconds_text(seconds[rank])}, the others {_between(others)}"


def _between(seconds: Collection[float]) -> str:
    low, high = seconds_text(min(seconds)), seconds_text(max(seconds))
    return low if low == high else f"{low.removesuffix(' s')} to {high}"
