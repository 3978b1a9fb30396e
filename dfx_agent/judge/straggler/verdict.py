"""Which rank makes the others wait, and why: the straggler verdict of one role.

The culprit waits least while the others wait. Its work in a step is the step's wall time without
waiting for peers; how much more that is than the median of the others is its excess. A verdict
needs all of:

    size         at least 5 % of a step, and more than the ranks' own spread from step to step
                 brings about by chance
    recurrence   in 4 of 5 steps (8 of 10, 14 of 20); in the first 3 if above 15 % of a step
    effect       the others waited for it, at least half of the excess
    processor    the host let it run: see busy_host

Work that goes with the number of tokens is no fault of the rank: the cause is "more tokens" then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

from dfx_agent.durations import seconds_text
from dfx_agent.facts.steps import LEAST_SECONDS, TRANSFER, RankStep, Step
from dfx_agent.judge.straggler import busy_host
from dfx_agent.judge.straggler.causes import (
    HOST_STALL,
    MIN_TOKEN_SHARE,
    Cause,
    excess_parts,
    find_cause,
    part_lines,
)
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

_MOST_STEPS = WINDOWS[0].num_steps
_FEWEST_STEPS = FIRST_WINDOW.num_steps
_SMALLEST_SHARE = 0.05
_MIN_COVERAGE_RATIO = 0.5
_MIN_EFFECT = 0.5
_TOGETHER_SHARE = 0.7
_STALL_SHARE = 0.5
_STALL_SIGMAS = 6.0
_FEWEST_STALLS = 2  # of one rank, in the steps that are kept
_NUM_NEWEST = 5
_SAME_SIGMAS = 3.0
_BLIND_SHARE = 0.25


def straggler_verdict(
    role: str, steps: Sequence[Step], coverage_ratio: float | None, named: Collection[str] = ()
) -> Verdict:
    """``steps`` oldest first; ``coverage_ratio`` of the rank that has the least, None unknown.

    ``named``: ranks of the verdict before, which need less to stay in it than to come into it.
    """
    comparable = [step for step in steps if step.ranks.keys() == steps[-1].ranks.keys()]
    # of steps before this agent came nobody knows whether the host let the ranks run
    seen = [s for s in comparable if all(of.processor is not None for of in s.ranks.values())]
    comparable = seen or comparable
    reason = _reason_to_abstain(comparable, coverage_ratio)
    if reason:
        return Verdict("straggler", "insufficient evidence", role, reason)
    return _Comparison(role, comparable, named).verdict()


def _reason_to_abstain(steps: Sequence[Step], coverage_ratio: float | None) -> str:
    """Why these steps cannot be judged; "" when they can."""
    if len(steps) < _FEWEST_STEPS:
        num_passed, needed = sum(step.num_steps for step in steps), f"{_FEWEST_STEPS}"
        if num_passed > len(steps):
            needed = f"{seconds_text(_FEWEST_STEPS * LEAST_SECONDS)} of them"
        return f"{num_passed} steps that the same ranks have passed, at least {needed} needed"
    newest = steps[-_MOST_STEPS:]
    ranks = [rank for step in newest for rank in step.ranks.values()]
    if len(ranks) == len(newest):
        return "only one rank of the role is on this node"
    num_lost = newest[-1].num_lost - newest[0].num_lost
    if num_lost:
        return f"{num_lost} records were lost in the last {_num_passed(newest)} steps"
    if coverage_ratio is not None and coverage_ratio < _MIN_COVERAGE_RATIO:
        return f"only {coverage_ratio:.0%} of the collectives of a rank were recorded"
    if not any(rank.waited_seconds or rank.parts[TRANSFER] for rank in ranks):
        return "neither collectives nor waits were seen: who waits for whom is not known"
    return ""


def _abstained(role: str, reason: str) -> Verdict:
    return Verdict("straggler", "insufficient evidence", role, reason, cause=BUSY_HOST)


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A rank whose excess is large and recurrent; seconds per step, means over the newest steps."""

    rank: str
    window: Window
    num_steps: int
    excess_seconds: float
    lost_seconds: float
    token_seconds: float | None


class _Comparison:
    """The ranks of one role over the newest steps, the same ranks in each."""

    def __init__(self, role: str, steps: Sequence[Step], named: Collection[str]) -> None:
        self._role = role
        self._named = named
        self._steps = steps
        self._views = views(steps)
        self._excess = self._views[0].table
        self._tokens = self._views[min(1, len(self._views) - 1)].tokens
        newest = steps[-_NUM_NEWEST:]
        fitting = [window for window in WINDOWS if window.num_steps <= len(steps)]
        self._windows = fitting or [FIRST_WINDOW]
        self._step_seconds = median(r.wall_seconds for s in newest for r in s.ranks.values())

    def verdict(self) -> Verdict:
        reason = busy_host.reason_to_abstain(self._steps, self._step_seconds)
        if reason:
            return _abstained(self._role, reason)
        for window in self._windows:
            suspects = [s for rank in self._excess if (s := self._suspect(rank, window))]
            if suspects:
                return self._refused(suspects) or self._found(suspects)
        return self._now_and_then() or self._stall() or self._nothing()

    def _refused(self, suspects: Sequence[_Suspect]) -> Verdict | None:
        """Instead of blame, where the worst was refused a processor for as long as it was late."""
        worst = max(suspects, key=lambda suspect: suspect.excess_seconds)
        steps = self._steps[-worst.num_steps :]
        late = steps, worst.rank, worst.excess_seconds
        reason = busy_host.explained(*late) or busy_host.overshadowed(*late)
        if not reason:
            return None
        return _abstained(self._role, reason)

    def _suspect(self, rank: str, window: Window) -> _Suspect | None:
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
        if min(excess, lately) < window.share * self._step_seconds or lost < _MIN_EFFECT * excess:
            return None
        tokens = None
        if self._tokens is not None:
            tokens = middle_mean(self._tokens.seconds[rank][-num_steps:])
        if tokens is None or tokens < MIN_TOKEN_SHARE * excess:
            lost = min(1.0, lost / excess) * self._amount(rank, num_steps, recurring)
        return _Suspect(rank, window, num_steps, excess, lost, tokens)

    def _amount(self, rank: str, num_steps: int, recurring: Sequence[View]) -> float:
        """Seconds by the steadiest view, unless the wall time of the same steps denies it."""
        sharp = min(recurring, key=lambda view: view.sigmas[rank])
        alike = [v for v in self._views if (v.tokens is None) == (sharp.tokens is None)]
        seconds, whole = (middle_mean(v.table[rank][-num_steps:]) for v in (sharp, alike[0]))
        chance = alike[0].sigmas[rank] / sqrt(num_steps)
        return seconds if abs(seconds - whole) <= _SAME_SIGMAS * chance else whole

    def _found(self, suspects: Sequence[_Suspect]) -> Verdict:
        worst = max(suspects, key=lambda suspect: suspect.excess_seconds)
        least = _TOGETHER_SHARE * worst.excess_seconds
        ranks = tuple(s.rank for s in suspects if s.excess_seconds >= least)
        cause = self._cause(worst)
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
            since_seconds=self._since_seconds(worst),
            lost_seconds=worst.lost_seconds,
            evidence=tuple(self._evidence(worst, cause)),
        )

    def _cause(self, worst: _Suspect) -> Cause:
        parts = excess_parts(self._steps[-worst.num_steps :], worst.rank)
        return find_cause(parts, worst.excess_seconds, worst.token_seconds)

    def _since_seconds(self, worst: _Suspect) -> float:
        """Begin of the first step of the unbroken row; one step in between may be better."""
        since, num_misses = self._steps[-1].begin_seconds, 0
        rows = zip(self._steps, self._excess[worst.rank], strict=True)
        for step, excess in reversed(list(rows)):
            if excess < _SMALLEST_SHARE * self._step_seconds:
                num_misses += 1
                if num_misses > 1:
                    break
            else:
                since, num_misses = step.begin_seconds, 0
        return since

    def _evidence(self, worst: _Suspect, cause: Cause) -> list[str]:
        num_steps, rank = worst.num_steps, worst.rank
        of_steps = f"median of {_span(self._steps[-num_steps:])}"
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
            span = f"{min(others):.0f} to {max(others):.0f}"
            explained = seconds_text(max(0.0, worst.token_seconds))
            lines.append(
                f"rank {rank} had {tokens[rank]:.0f} {self._tokens.words}, the others {span}: "
                f"that explains "
                f"{explained} of {seconds_text(worst.excess_seconds)}"
            )
        if all(busy(of) for of in self._steps[-1].ranks.values()):
            had = self._medians(num_steps, lambda of: busy(of) or 0.0)
            lines.append(f"rank {rank} had a processor for {_versus(had, rank)}, {of_steps}")
        return [*lines, *cause.lines]

    def _recurrence_line(self, worst: _Suspect) -> str:
        newest = self._excess[worst.rank][-worst.num_steps :]
        least = worst.window.share * self._step_seconds
        num_hits = sum(excess >= least for excess in newest)
        return (
            f"more work by at least {seconds_text(least)} in {num_hits} of the last "
            f"{_span(self._steps[-len(newest) :])}; a step takes {seconds_text(self._step_seconds)}"
        )

    def _medians(self, num_steps: int, measure: Callable[[RankStep], float]) -> dict[str, float]:
        newest = self._steps[-num_steps:]
        return {rank: median(measure(s.ranks[rank]) for s in newest) for rank in self._excess}

    def _stalls(self, num_newest: int) -> list[tuple[float, str, Step]]:
        """Excess, rank and step where all waited long for one rank, oldest first for each."""
        # of the wall time, at equal tokens if they are known
        table, sigmas, _ = self._views[0 if self._tokens is None else 1]
        return [
            (excess, rank, step)
            for rank, row in table.items()
            for step, excess in zip(
                self._steps[-len(row) :][-num_newest:], row[-num_newest:], strict=True
            )
            if excess >= max(_STALL_SHARE * self._step_seconds, _STALL_SIGMAS * sigmas[rank])
            and _lost_seconds(step, rank) >= _MIN_EFFECT * excess
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
        num_steps = _num_passed(self._steps)
        least = _SMALLEST_SHARE * self._step_seconds * num_steps
        if not worst or len(by_rank[worst]) < _FEWEST_STALLS or lost[worst] < least:
            return None
        late = by_rank[worst]
        numbers = ", ".join(str(step.step) for step in late[-8:])
        return Verdict(
            kind="straggler",
            state="insufficient evidence",
            role=self._role,
            summary=f"rank {worst} held the others up in {len(late)} of the last "
            f"{_span(self._steps)}, by {seconds_text(lost[worst] / len(late))} each: "
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

    def _nothing(self) -> Verdict:
        """Clear, unless an excess would have to be huge to be seen."""
        window = self._windows[0]
        num_steps = window.num_steps
        limit = min(
            reach_seconds(window, max(view.sigmas.values()), self._step_seconds)
            for view in self._views
        )
        share = f"{seconds_text(limit)} ({limit / self._step_seconds:.0%} of a step)"
        waited = self._medians(num_steps, lambda of: of.waited_seconds).values()
        line = (
            f"each rank waited {_range_text(waited)} for peers in a step of "
            f"{seconds_text(self._step_seconds)}, median of {_span(self._steps[-num_steps:])}"
        )
        if limit <= _BLIND_SHARE * self._step_seconds:
            summary = f"no rank makes the others wait more than {share}"
            step = self._steps[-1].step
            return Verdict("straggler", "clear", self._role, summary, step=step, evidence=(line,))
        summary = (
            f"in {_num_passed(self._steps)} steps the ranks differ too much by chance to see less "
            f"than {share}"
        )
        return Verdict("straggler", "insufficient evidence", self._role, summary, evidence=(line,))


def _num_passed(steps: Sequence[Step]) -> int:
    return sum(step.num_steps for step in steps)


def _span(steps: Sequence[Step]) -> str:
    """``20 steps``; ``20 groups of about 31 steps`` where they are short."""
    num_steps = _num_passed(steps)
    if num_steps == len(steps):
        return f"{num_steps} steps"
    return f"{len(steps)} groups of about {num_steps / len(steps):.0f} steps"


def _lost_seconds(step: Step, rank: str) -> float:
    """How much longer the others waited in this step."""
    waited = {label: of.waited_seconds for label, of in step.ranks.items()}
    return others_median(waited, rank) - waited[rank]


def _versus(seconds: Mapping[str, float], rank: str) -> str:
    others = [value for label, value in seconds.items() if label != rank]
    return f"{seconds_text(seconds[rank])}, the others {_range_text(others)}"


def _range_text(seconds: Collection[float]) -> str:
    low, high = seconds_text(min(seconds)), seconds_text(max(seconds))
    return low if low == high else f"{low.removesuffix(' s')} to {high}"
