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
Where the layout of the job is known, ranks are compared with those that do the same work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dfx_agent.durations import seconds_text
from dfx_agent.facts.steps import LEAST_SECONDS, TRANSFER, Step
from dfx_agent.judge.straggler.columns import Remembered
from dfx_agent.judge.straggler.comparison import Comparison, num_passed
from dfx_agent.judge.straggler.division import Division
from dfx_agent.judge.straggler.excess import FIRST_WINDOW, WINDOWS
from dfx_agent.judge.straggler.whole_job import WholeJob
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
) -> Verdict:
    """``steps`` oldest first; ``coverage_ratio`` of the rank that has the least, None unknown.

    ``named``: ranks of the verdict before, which need less to stay in it than to come into it.
    ``division``: of the ranks of the newest step; None where all do the same work. ``remembered``:
    of the judgements before, for one that goes on from them.
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
    if division is None or division.is_plain:
        return Comparison(role, comparable, named, remembered.whole).verdict()
    return WholeJob(role, comparable, named, division, remembered).verdict()


def _reason_to_abstain(steps: Sequence[Step], coverage_ratio: float | None) -> str:
    """Why these steps cannot be judged; "" when they can."""
    if len(steps) < _FEWEST_STEPS:
        num_seen, needed = num_passed(steps), f"{_FEWEST_STEPS}"
        if num_seen > len(steps):
            needed = f"{seconds_text(_FEWEST_STEPS * LEAST_SECONDS)} of them"
        return f"{num_seen} steps that the same ranks have passed, at least {needed} needed"
    newest = steps[-_MOST_STEPS:]
    ranks = [rank for step in newest for rank in step.ranks.values()]
    if len(ranks) == len(newest):
        return "only one rank of the role is on this node"
    num_lost = newest[-1].num_lost - newest[0].num_lost
    if num_lost:
        return f"{num_lost} records were lost in the last {num_passed(newest)} steps"
    if coverage_ratio is not None and coverage_ratio < _MIN_COVERAGE_RATIO:
        return f"only {coverage_ratio:.0%} of the collectives of a rank were recorded"
    if not any(rank.waited_seconds or rank.parts[TRANSFER] for rank in ranks):
        return "neither collectives nor waits were seen: who waits for whom is not known"
    return ""
