"""Compares ranks that do the same work: which ranks work longer, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.steps import RankStep, Step
from dfx_agent.judge.straggler import busy_host, sentences
from dfx_agent.judge.straggler.busy_host import faulting
from dfx_agent.judge.straggler.causes import (
    DATA_LOADER,
    DATA_WAIT,
    MIN_TOKEN_SHARE,
    MORE_TOKENS,
    PAGE_FAULTS,
    Cause,
    excess_parts,
    find_cause,
)
from dfx_agent.judge.straggler.columns import Columns
from dfx_agent.judge.straggler.excess import (
    FIRST_WINDOW,
    WINDOWS,
    RankExcess,
    Window,
    busy,
    middle_mean,
    num_on_level,
    reach_seconds,
    recurs,
    views,
)
from dfx_agent.judge.straggler.single_steps import (
    MIN_EFFECT,
    NUM_LATEST,
    SMALLEST_SHARE,
    SingleSteps,
    lost_seconds,
    span,
)
from dfx_agent.judge.straggler.witnesses import Testimony, testimonies, work_excess
from dfx_agent.judge.words import BUSY_HOST, labels_text, percent
from dfx_agent.snapshot import Verdict

TOGETHER_SHARE = 0.7
_SIMILAR_SHARE = 0.5
_MOST_SHARE = 1 / 3  # of the ranks; if more are slow, their work probably differs
_NUM_ALWAYS_NAMED = 2
_SAME_SIGMAS = 3.0
BLIND_SHARE = 0.25
_LOADER_SHARE = 0.5  # of an excess; if the data loader takes more, the rank is not blamed


def busy_verdict(role: str, steps: Sequence[Step], step_seconds: float) -> Verdict | None:
    """The verdict "insufficient evidence" if ranks lacked CPUs; None if they did not."""
    starved = busy_host.starved_ranks(steps, step_seconds)
    return _abstained(role, starved) if starved else None


def _abstained(role: str, reason: busy_host.Reason, cause: str = BUSY_HOST) -> Verdict:
    """The verdict "insufficient evidence" because something else may explain the excess."""
    return Verdict(
        "straggler", "insufficient evidence", role, reason.text, cause=cause,
        action=reason.sentence.action,
    )  # fmt: skip


def no_fault(
    role: str, slow: Sequence[str], num_ranks: int, excess: str, *, is_same_work: bool
) -> Verdict | None:
    """The verdict "insufficient evidence" if the work of the slow ranks may differ, else None.

    Faults are rare, so several ranks that are slower by the same amount are more often a pipeline
    stage than faults. A known layout excludes this.
    """
    if len(slow) > 1 and not is_same_work:
        text = sentences.ALWAYS_LONGER(ranks=capitalized(labels_text(slow)), excess=excess)
    elif len(slow) > max(_NUM_ALWAYS_NAMED, _MOST_SHARE * num_ranks):
        text = sentences.TOO_MANY(num_slow=len(slow), num_ranks=num_ranks)
    else:
        return None
    evidence = (labels_text(slow),)
    return Verdict("straggler", "insufficient evidence", role, text, evidence=evidence)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank with a large excess in most steps. Seconds are means per step."""

    rank: str
    window: Window
    num_steps: int
    """Number of latest steps that the means are taken over."""
    excess_seconds: float
    """How much longer than the other ranks it worked."""
    lost_seconds: float
    """How long the other ranks waited for it."""
    token_seconds: float | None
    """The part of the excess that more tokens explain; None if tokens are unknown."""
    testimony: Testimony | None = None
    """Evidence by waits and CPU time, if both name this rank."""


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs of a comparison besides its steps."""

    named: Collection[str] = ()
    """Ranks that the last verdict named."""
    looks: Sequence[Step] = ()
    """The same steps and earlier ones; steps below a second are merged."""
    is_layout_known: bool = True
    """Whether all ranks of a comparison are known to do the same work."""


class Comparison:
    """Compares at least two ranks over the latest steps, with the same ranks in each step.

    ``columns``: cache of values of these steps.
    """

    def __init__(
        self, role: str, steps: Sequence[Step], context: Context, columns: Columns
    ) -> None:
        self._role, self._context = role, context
        self._steps = steps
        self._views = views(steps, columns)
        self._excess = self._views[0].table
        self._tokens = self._views[min(1, len(self._views) - 1)].tokens
        latest = steps[-NUM_LATEST:]
        fitting = [window for window in WINDOWS if window.num_steps <= len(steps)]
        self._windows = fitting or [FIRST_WINDOW]
        self._step_seconds = median(
            rank_step.wall_seconds for step in latest for rank_step in step.ranks.values()
        )

    @property
    def ranks(self) -> tuple[str, ...]:
        return tuple(self._excess)

    def verdict(self) -> Verdict:
        """The verdict if these are all ranks of the role."""
        suspects = self.suspects()
        if suspects:
            return self.refused(suspects) or self._no_fault(suspects) or self.found(suspects)
        busy = busy_verdict(self._role, self._steps, self._step_seconds)
        return busy or self.single_steps() or self.nothing()

    def suspects(self) -> list[Suspect]:
        """Ranks that both witnesses name; otherwise suspects of the longest window that has any."""
        witnessed = testimonies(self._context.looks, self._context.named)
        if witnessed:
            return [self._witnessed(testimony) for testimony in witnessed]
        for window in self._windows:
            found = (self._suspect(rank, window) for rank in self._excess)
            suspects = [suspect for suspect in found if suspect is not None]
            if suspects:
                return suspects
        return []

    def single_steps(self) -> Verdict | None:
        """The verdict on a rank that delayed the others in single steps only, else None."""
        # wall time, at equal tokens if they are known
        view = self._views[0 if self._tokens is None else 1]
        late = SingleSteps(self._role, self._steps, self._excess, view, self._step_seconds)
        return late.repeated() or late.latest()

    def refused(self, suspects: Sequence[Suspect]) -> Verdict | None:
        """The verdict "insufficient evidence" if the data loader or the host explains the excess.

        A rank with high CPU time, or one that is named already, is not excused by the host.
        """
        worst = max(suspects, key=lambda suspect: suspect.excess_seconds)
        steps = self._steps[-worst.num_steps :]
        if worst.testimony is not None:
            return None
        share = excess_parts(steps, worst.rank).get(DATA_LOADER, 0.0) / worst.excess_seconds
        if share >= _LOADER_SHARE:
            return self._waits_for_data(worst, share)
        late = busy_host.Late(steps, worst.rank, worst.excess_seconds, self._step_seconds)
        if faults := faulting(late):
            return _abstained(self._role, faults, PAGE_FAULTS)
        if worst.rank in self._context.named:
            return None
        reason = (
            busy_host.starved_ranks(self._steps, self._step_seconds)
            or busy_host.delayed(late)
            or busy_host.asleep(late)
        )
        return _abstained(self._role, reason) if reason else None

    def _waits_for_data(self, worst: Suspect, share: float) -> Verdict:
        """The verdict if the data loader of the rank was empty; other loaders may be as slow."""
        waited = share * worst.excess_seconds / self._step_seconds
        words = {"ranks": labels_text([worst.rank]), "share": percent(waited)}
        return Verdict(
            "straggler", "insufficient evidence", self._role, sentences.DATA_LOADER(**words),
            cause=DATA_WAIT, step=self._steps[-1].step, action=sentences.DATA_LOADER.action,
        )  # fmt: skip

    def _no_fault(self, suspects: Sequence[Suspect]) -> Verdict | None:
        worst = max(suspects, key=lambda suspect: suspect.excess_seconds)
        is_explained = self.cause(worst).word == MORE_TOKENS
        return no_fault(
            self._role, self.similar(suspects), len(self._excess), self.cost_text(worst),
            is_same_work=self._context.is_layout_known or is_explained,
        )  # fmt: skip

    def similar(self, suspects: Sequence[Suspect]) -> tuple[str, ...]:
        """Suspects that are about as slow as the worst one.

        If the work of ranks may differ, other ranks with half of its mean excess are included.
        """
        worst = max(suspects, key=lambda suspect: suspect.excess_seconds)
        if self._context.is_layout_known or self.cause(worst).word == MORE_TOKENS:
            return _together(suspects)
        means = {rank: middle_mean(row[-worst.num_steps :]) for rank, row in self._excess.items()}
        least = _SIMILAR_SHARE * means[worst.rank]
        return tuple(rank for rank, mean in means.items() if mean >= least)

    def _witnessed(self, testimony: Testimony) -> Suspect:
        """A suspect from a testimony, with means over the compared steps."""
        num_steps = min(len(self._steps), testimony.num_looks)
        tokens = None
        if self._tokens is not None:
            tokens = middle_mean(self._tokens.seconds[testimony.rank][-num_steps:])
        return Suspect(
            testimony.rank, self._windows[0], num_steps, testimony.excess_seconds,
            testimony.lost_seconds, tokens, testimony,
        )  # fmt: skip

    def _suspect(self, rank: str, window: Window) -> Suspect | None:
        if rank in self._context.named:
            window = window.to_stay()
        recurring = [
            view
            for view in self._views
            if recurs(view.table[rank], window, view.sigmas[rank], self._step_seconds)
        ]
        if not recurring:
            return None
        latest = self._excess[rank][-window.num_steps :]
        num_steps = num_on_level(latest, self._views[0].sigmas[rank])
        excess = middle_mean(self._excess[rank][-num_steps:])
        lately = max(median(view.table[rank][-NUM_LATEST:]) for view in recurring)
        lost = middle_mean(lost_seconds(step, rank) for step in self._steps[-num_steps:])
        if min(excess, lately) < window.share * self._step_seconds or lost < MIN_EFFECT * excess:
            return None
        tokens = None
        if self._tokens is not None:
            tokens = middle_mean(self._tokens.seconds[rank][-num_steps:])
        if tokens is None or tokens < MIN_TOKEN_SHARE * excess:
            lost = min(1.0, lost / excess) * self._amount(rank, num_steps, recurring)
        return Suspect(rank, window, num_steps, excess, lost, tokens)

    def _amount(self, rank: str, num_steps: int, recurring: Sequence[RankExcess]) -> float:
        """Excess by the view with the least noise, unless the wall time contradicts it."""
        sharp = min(recurring, key=lambda view: view.sigmas[rank])
        same_kind = [
            view for view in self._views if (view.tokens is None) == (sharp.tokens is None)
        ]
        wall = same_kind[0]
        seconds = middle_mean(sharp.table[rank][-num_steps:])
        wall_seconds = middle_mean(wall.table[rank][-num_steps:])
        noise = wall.sigmas[rank] / sqrt(num_steps)
        return seconds if abs(seconds - wall_seconds) <= _SAME_SIGMAS * noise else wall_seconds

    def found(self, suspects: Sequence[Suspect]) -> Verdict:
        """The finding on these suspects."""
        worst = max(suspects, key=lambda suspect: suspect.excess_seconds)
        ranks, cause = _together(suspects), self.cause(worst)
        return Verdict(
            kind="straggler",
            state="found",
            role=self._role,
            summary=self._found_text(worst, ranks, cause),
            ranks=ranks,
            stage=cause.stage,
            cause=cause.word,
            step=self._steps[-1].step,
            since_seconds=self.since_seconds(worst),
            lost_seconds=worst.lost_seconds,
            evidence=tuple(self.evidence(worst, cause)),
        )

    def _found_text(self, worst: Suspect, ranks: Sequence[str], cause: Cause) -> str:
        """The headline in seconds, or in numbers of steps if the host was too busy."""
        names, seen = capitalized(labels_text(ranks)), worst.testimony
        busy = busy_host.starved_ranks(self._steps, self._step_seconds)
        if busy is None or seen is None:
            verb = "makes" if len(ranks) == 1 else "make"
            share = percent(worst.lost_seconds / self._step_seconds)
            seconds = seconds_text(worst.lost_seconds)
            return sentences.FOUND(
                ranks=names, make=verb, seconds=seconds, share=share, cause=cause.text
            )
        steps = span(self._context.looks[-seen.num_looks :])
        return sentences.FOUND_ON_BUSY_HOST(
            ranks=names if len(ranks) == 1 else capitalized(labels_text([worst.rank])),
            num_last=seen.num_last, steps=steps, more_cpu=percent(seen.more_cpu_ratio),
            cause=cause.text,
        )  # fmt: skip

    def cost_text(self, worst: Suspect) -> str:
        """As in "0.4 s per step (30 %)"."""
        share = percent(worst.excess_seconds / self._step_seconds)
        return f"{seconds_text(worst.excess_seconds)} per step ({share})"

    def cause(self, worst: Suspect) -> Cause:
        parts = excess_parts(self._steps[-worst.num_steps :], worst.rank)
        computes = worst.testimony is not None
        return find_cause(parts, worst.excess_seconds, worst.token_seconds, computes=computes)

    def since_seconds(self, worst: Suspect) -> float:
        """Unix time since which the rank has been slow, ignoring single better steps."""
        if worst.testimony is None:
            rows = list(zip(self._steps, self._excess[worst.rank], strict=True))
        else:
            rows = [(look, work_excess(look, worst.rank)) for look in self._context.looks]
        since, num_misses = self._steps[-1].begin_seconds, 0
        for step, excess in reversed(rows):
            if excess < SMALLEST_SHARE * self._step_seconds:
                num_misses += 1
                if num_misses > 1:
                    break
            else:
                since, num_misses = step.begin_seconds, 0
        return since

    def evidence(self, worst: Suspect, cause: Cause) -> list[str]:
        num_steps, rank = worst.num_steps, worst.rank
        over_steps = f"median of {span(self._steps[-num_steps:])}"
        waited = self._medians(num_steps, lambda rank_step: rank_step.waited_seconds)
        worked = self._medians(num_steps, lambda rank_step: rank_step.work_seconds)
        lines = [
            f"rank {rank} waited {_versus(waited, rank)} for peers, {over_steps}",
            f"rank {rank} worked {_versus(worked, rank)}, {over_steps}",
            self._recurrence_line(worst),
            *self._testimony_lines(worst.testimony),
        ]
        if worst.token_seconds is None or self._tokens is None:
            lines.append("tokens are unknown: equal work is assumed")
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
        if all(busy(rank_step) for rank_step in self._steps[-1].ranks.values()):
            had = self._medians(num_steps, lambda rank_step: busy(rank_step) or 0.0)
            lines.append(f"rank {rank} had a CPU for {_versus(had, rank)}, {over_steps}")
        return [*lines, *cause.lines]

    def _testimony_lines(self, seen: Testimony | None) -> list[str]:
        if seen is None:
            return []
        steps = span(self._context.looks[-seen.num_looks :])
        by_chance = seen.num_looks / len(self._excess)
        line = (
            f"rank {seen.rank} was last in {seen.num_last} of {steps} and used most CPU time in "
            f"{seen.num_busiest}, {percent(seen.more_cpu_ratio)} more than the others; by chance a "
            f"rank would be in {by_chance:.0f}"
        )
        return [line]

    def _recurrence_line(self, worst: Suspect) -> str:
        latest = self._excess[worst.rank][-worst.num_steps :]
        least = worst.window.share * self._step_seconds
        num_hits = sum(excess >= least for excess in latest)
        return (
            f"more work by at least {seconds_text(least)} in {num_hits} of the last "
            f"{span(self._steps[-len(latest) :])}; a step takes {seconds_text(self._step_seconds)}"
        )

    def _medians(self, num_steps: int, measure: Callable[[RankStep], float]) -> dict[str, float]:
        latest = self._steps[-num_steps:]
        return {rank: median(measure(step.ranks[rank]) for step in latest) for rank in self._excess}

    def reach_seconds(self) -> float:
        """The smallest excess that would have been found."""
        window = self._windows[0]
        return min(
            reach_seconds(window, max(view.sigmas.values()), self._step_seconds)
            for view in self._views
        )

    def nothing(self) -> Verdict:
        """The verdict if no rank is slow: clear, unless only a huge excess would be visible."""
        num_steps, limit = self._windows[0].num_steps, self.reach_seconds()
        words = {"share": percent(limit / self._step_seconds), "seconds": seconds_text(limit)}
        waited = self._medians(num_steps, lambda rank_step: rank_step.waited_seconds).values()
        line = (
            f"each rank waited {_between(waited)} for peers in a step of "
            f"{seconds_text(self._step_seconds)}, median of {span(self._steps[-num_steps:])}"
        )
        if limit <= BLIND_SHARE * self._step_seconds:
            summary, step = sentences.NOTHING(**words), self._steps[-1].step
            return Verdict("straggler", "clear", self._role, summary, step=step, evidence=(line,))
        summary = sentences.TOO_NOISY(steps=span(self._steps), **words)
        return Verdict("straggler", "insufficient evidence", self._role, summary, evidence=(line,))


def _together(suspects: Sequence[Suspect]) -> tuple[str, ...]:
    """The worst suspect, and others with at least 70 % of its excess."""
    least = TOGETHER_SHARE * max(suspect.excess_seconds for suspect in suspects)
    return tuple(suspect.rank for suspect in suspects if suspect.excess_seconds >= least)


def _versus(seconds: Mapping[str, float], rank: str) -> str:
    others = [value for label, value in seconds.items() if label != rank]
    return f"{seconds_text(seconds[rank])}, the others {_between(others)}"


def _between(seconds: Collection[float]) -> str:
    low, high = seconds_text(min(seconds)), seconds_text(max(seconds))
    return low if low == high else f"{low.removesuffix(' s')} to {high}"
