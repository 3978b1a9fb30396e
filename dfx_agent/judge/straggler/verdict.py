"""Which rank makes the others wait, and why: the straggler verdict of one role.

The slow rank waits least while the others wait. Its work in a step is the wall time of the step
without waiting for peers; how much more that is than the median of the others is its excess.

Two ways lead to a verdict:

    witnesses    the rank is last, and its thread uses most CPU time, both more often than chance
                 explains: holds on a busy host too; see ``witnesses``
    excess       step after step more work than the spread of the ranks explains, where neither
                 the host nor an empty data loader explains it; see ``excess`` and ``busy_host``

In both the others waited for it during at least half of the excess. Work that goes with the number
of tokens is no fault of the rank: the cause is "more tokens" then. Where the layout of the job is
known, ranks are compared with those that do the same work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.steps import LEAST_SECONDS, TRANSFER, Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.columns import Remembered
from dfx_agent.judge.straggler.comparison import Comparison, Context
from dfx_agent.judge.straggler.division import Division
from dfx_agent.judge.straggler.excess import FIRST_WINDOW, WINDOWS
from dfx_agent.judge.straggler.single_steps import num_passed
from dfx_agent.judge.straggler.whole_job import WholeJob
from dfx_agent.judge.straggler.witnesses import Looks
from dfx_agent.judge.words import percent
from dfx_agent.snapshot import Verdict

_MOST_STEPS = WINDOWS[0].num_steps
_FEWEST_STEPS = FIRST_WINDOW.num_steps
_MIN_COVERAGE_RATIO = 0.5


def straggler_verdict(
    role: str,
    steps: Sequence[Step],
    coverage_ratio: float | None,
    named: Collection[str] = (),
    division: Division | None = None,
    remembered: Remembered | None = None,
    looks: Sequence[Step] | None = None,
) -> Verdict:
    """``steps`` oldest first; ``coverage_ratio`` of the rank that has the least, None unknown.

    ``named``: ranks of the verdict before, which need less to stay in it than to come into it.
    ``division``: of the ranks of the newest step; None where the layout is unknown. ``remembered``:
    of the judgements before, for one that goes on from them. ``looks``: see ``Looks``; of these
    steps if None.
    """
    comparable = [step for step in steps if step.ranks.keys() == steps[-1].ranks.keys()]
    # of steps before this agent came nobody knows whether the host let the ranks run
    seen = [s for s in comparable if all(of.processor is not None for of in s.ranks.values())]
    comparable = seen or comparable
    reason = _reason_to_abstain(comparable, coverage_ratio)
    if reason:
        return Verdict("straggler", "insufficient evidence", role, reason)
    if division is not None and division.doubt:
        return Verdict("straggler", "insufficient evidence", role, division.doubt)
    remembered = remembered or Remembered()
    looks = Looks.of(comparable) if looks is None else looks
    context = Context(named, looks, division is not None and division.is_known)
    if division is None or division.is_plain:
        return Comparison(role, comparable, context, remembered.whole).verdict()
    return WholeJob(role, comparable, context, division, remembered).verdict()


def _reason_to_abstain(steps: Sequence[Step], coverage_ratio: float | None) -> str:
    """Why these steps cannot be judged; "" when they can."""
    if len(steps) < _FEWEST_STEPS:
        num_seen = num_passed(steps)
        needed = f"{_FEWEST_STEPS} are"
        if num_seen > len(steps):
            needed = f"{seconds_text(_FEWEST_STEPS * LEAST_SECONDS)} of steps are"
        seen = f"{num_seen} step{'s' * (num_seen != 1)}"
        return sentences.TOO_FEW_STEPS(num_steps=seen, needed=needed)
    newest = steps[-_MOST_STEPS:]
    ranks = [rank for step in newest for rank in step.ranks.values()]
    if len(ranks) == len(newest):
        return sentences.ONE_RANK_HERE()
    num_lost = newest[-1].num_lost - newest[0].num_lost
    if num_lost:
        return sentences.RECORDS_LOST(num_lost=num_lost, num_steps=num_passed(newest))
    if coverage_ratio is not None and coverage_ratio < _MIN_COVERAGE_RATIO:
        return sentences.FEW_COLLECTIVES(share=percent(coverage_ratio))
    if not any(rank.waited_seconds or rank.parts[TRANSFER] for rank in ranks):
        return sentences.NO_WAITS()
    return ""
