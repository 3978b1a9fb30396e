"""Judges ranks that are late in single steps only. They are no stragglers, but not clear."""

from __future__ import annotations

from collections.abc import Sequence

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.steps import Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.causes import HOST_STALL, excess_parts, part_lines
from dfx_agent.judge.straggler.excess import RankExcess, Table, others_median
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import Verdict

SMALLEST_SHARE = 0.05
MIN_EFFECT = 0.5
NUM_LATEST = 5
_STALL_SHARE = 0.5
_STALL_SIGMAS = 6.0
_FEWEST_STALLS = 2  # of one rank, in the compared steps


class SingleSteps:
    """Late steps of ranks that do the same work. ``view``: the excess that shows them best."""

    def __init__(
        self, role: str, steps: Sequence[Step], excess: Table, view: RankExcess, step_seconds: float
    ) -> None:
        self._role, self._steps, self._excess = role, steps, excess
        self._view, self._step_seconds = view, step_seconds

    def _stalls(self, num_latest: int) -> list[tuple[float, str, Step]]:
        """(excess, rank, step) of steps in which all waited long for one rank, oldest first."""
        table, sigmas, _ = self._view
        least = {
            rank: max(_STALL_SHARE * self._step_seconds, _STALL_SIGMAS * sigmas[rank])
            for rank in table
        }
        return [
            (excess, rank, step)
            for rank, row in table.items()
            if max(row[-num_latest:]) >= least[rank]
            for step, excess in zip(
                self._steps[-len(row) :][-num_latest:], row[-num_latest:], strict=True
            )
            if excess >= least[rank] and lost_seconds(step, rank) >= MIN_EFFECT * excess
        ]

    def repeated(self) -> Verdict | None:
        """The verdict on a rank that is late in several steps, for example every tenth.

        It is no straggler, because it may save or evaluate for all ranks.
        """
        by_rank: dict[str, list[Step]] = {}
        for _, rank, step in self._stalls(len(self._steps)):
            by_rank.setdefault(rank, []).append(step)
        lost = {
            rank: sum(lost_seconds(step, rank) * step.num_steps for step in late)
            for rank, late in by_rank.items()
        }
        worst = max(lost, key=lambda rank: lost[rank], default="")
        num_steps = num_passed(self._steps)
        least = SMALLEST_SHARE * self._step_seconds * num_steps
        if not worst or len(by_rank[worst]) < _FEWEST_STALLS or lost[worst] < least:
            return None
        late = by_rank[worst]
        return (
            None if self._is_over(worst, late) else self._repeated_verdict(worst, late, lost[worst])
        )

    def _repeated_verdict(self, worst: str, late: Sequence[Step], lost: float) -> Verdict:
        num_steps = num_passed(self._steps)
        numbers = ", ".join(str(step.step) for step in late[-8:])
        return Verdict(
            kind="straggler",
            state="insufficient evidence",
            role=self._role,
            summary=sentences.LATE_AT_TIMES(
                ranks=capitalized(labels_text([worst])),
                num_late=len(late),
                steps=span(self._steps),
                seconds=seconds_text(lost / len(late)),
                average=seconds_text(lost / num_steps),
            ),
            ranks=(worst,),
            cause=HOST_STALL,
            step=late[-1].step,
            since_seconds=late[0].begin_seconds,
            evidence=(
                f"in steps {numbers}; a step takes {seconds_text(self._step_seconds)}",
                "a rank that saves or evaluates for all ranks looks the same",
            ),
        )

    def _is_over(self, rank: str, late: Sequence[Step]) -> bool:
        """Whether the rank was a straggler and has recovered: late in all steps, but not lately."""
        begin, end = (self._steps.index(step) for step in (late[0], late[-1]))
        least = SMALLEST_SHARE * self._step_seconds
        is_row = all(excess >= least for excess in self._excess[rank][begin : end + 1])
        return is_row and end < len(self._steps) - NUM_LATEST

    def latest(self) -> Verdict | None:
        """The verdict on one recent step in which all ranks waited long for one rank, else None."""
        stalls = self._stalls(NUM_LATEST)
        if not stalls:
            return None
        excess, rank, step = max(stalls, key=lambda stall: stall[0])
        lost = seconds_text(lost_seconds(step, rank) * step.num_steps)
        delay = seconds_text(excess * step.num_steps)
        last = f"step {step.step}" if step.num_steps == 1 else f"{step.num_steps} short steps"
        parts = excess_parts([step], rank)
        totals = {part: seconds * step.num_steps for part, seconds in parts.items()}
        return Verdict(
            kind="straggler",
            state="insufficient evidence",
            role=self._role,
            summary=sentences.LATE_ONCE(
                ranks=capitalized(labels_text([rank])), seconds=delay, step=last
            ),
            ranks=(rank,),
            cause=HOST_STALL,
            step=step.step,
            since_seconds=step.begin_seconds,
            evidence=(
                f"the others waited {lost} longer than rank {rank} in {last}",
                *part_lines(totals, excess * step.num_steps),
            ),
        )


def num_passed(steps: Sequence[Step]) -> int:
    return sum(step.num_steps for step in steps)


def span(steps: Sequence[Step]) -> str:
    """As in "20 steps", or "20 groups of about 31 steps" for merged short steps."""
    num_steps = num_passed(steps)
    if num_steps == len(steps):
        return f"{num_steps} steps"
    size = round(num_steps / len(steps))
    return f"{len(steps)} groups of {f'about {size}' if size > 1 else 'one or more'} steps"


def lost_seconds(step: Step, rank: str) -> float:
    """How much longer than this rank the other ranks waited in this step."""
    waited = {label: rank_step.waited_seconds for label, rank_step in step.ranks.items()}
    return others_median(waited, rank) - waited[rank]
