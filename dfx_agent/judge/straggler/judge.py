"""Which rank makes the others wait, and why: the straggler verdicts of a run over time.

Who was named needs less to stay named.

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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.devices import DeviceState
from dfx_agent.facts.layout import NOT_TOLD, Layout
from dfx_agent.facts.steps import LEAST_SECONDS, TRANSFER, RoleSteps, Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.causes import SLOWER, SLOWER_TOKENS_UNKNOWN
from dfx_agent.judge.straggler.columns import Remembered
from dfx_agent.judge.straggler.comparable_ranks import Division, divided
from dfx_agent.judge.straggler.comparison import Comparison, Context
from dfx_agent.judge.straggler.excess import FIRST_WINDOW, WINDOWS
from dfx_agent.judge.straggler.single_steps import num_passed
from dfx_agent.judge.straggler.whole_job import WholeJob
from dfx_agent.judge.straggler.witnesses import Looks
from dfx_agent.judge.words import labels_text, percent
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.devices import device_text

_MOST_STEPS = WINDOWS[0].num_steps
_FEWEST_STEPS = FIRST_WINDOW.num_steps
_MIN_COVERAGE_RATIO = 0.5
THROTTLED = "device throttled"

_LEAST_THROTTLED = 0.5  # of the last minute
_SLOWER_CLOCK = 0.95  # of the median of the others
_HEAT = "look at fans, inlet air or coolant of its node, or drain it"
# by what the backends call the reasons
_REMEDIES = {
    "power cap": "give it the power limit of the others; if it has that, look at the power supply",
    "power brake": "its node lacks power and brakes it: look at the power supply, or drain it",
    "software thermal": _HEAT,
    "hardware thermal": _HEAT,
    "hardware slowdown": "look at cooling and power supply of its node; if it stays, drain it",
}


class StragglerJudge:
    """All roles of one run; a role is judged anew when a step came."""

    def __init__(self) -> None:
        self._judged: dict[str, tuple[RoleSteps, Verdict]] = {}
        self._remembered: dict[str, Remembered] = {}
        self._looks: dict[str, Looks] = {}
        self._divisions: dict[str, tuple[Layout, list[str], Division]] = {}

    def verdict(self, facts: RoleSteps) -> Verdict | None:
        """None for a role that one rank in the whole job has."""
        if facts.num_ranks == 1 and facts.world_size <= 1:
            return None
        known, before = self._judged.get(facts.role, (None, None))
        if known is None or before is None or _is_news(known, facts):
            named = before.ranks if before is not None and before.state == "found" else ()
            before = straggler_verdict(
                facts.role, facts.steps, facts.coverage_ratio, named, self._division(facts),
                self._remembered.setdefault(facts.role, Remembered()),
                self._looks.setdefault(facts.role, Looks()).add(facts.steps),
            )  # fmt: skip
            self._judged[facts.role] = facts, before
        return with_device(before, facts.devices)

    def _division(self, facts: RoleSteps) -> Division | None:
        """Of the ranks in the newest step; None before there is one, or where nothing is told."""
        if not facts.steps or facts.layout == NOT_TOLD:
            return None
        ranks = list(facts.steps[-1].ranks)
        layout, known, division = self._divisions.get(facts.role, (None, None, None))
        if division is None or known != ranks or layout != facts.layout:
            division = divided(facts.layout, ranks)
            self._divisions[facts.role] = facts.layout, ranks, division
        return division


def _is_news(known: RoleSteps, facts: RoleSteps) -> bool:
    return (
        known.steps[-1:] != facts.steps[-1:]
        or known.coverage_ratio != facts.coverage_ratio
        or known.layout != facts.layout
    )


def with_device(verdict: Verdict, devices: Mapping[str, DeviceState]) -> Verdict:
    """The same; where the clocks of who is blamed were held down below the others', that is why."""
    if verdict.state != "found" or verdict.cause not in {SLOWER, SLOWER_TOKENS_UNKNOWN}:
        return verdict
    lines = {rank: _line(rank, verdict.ranks, devices) for rank in verdict.ranks}
    held = tuple(rank for rank, line in lines.items() if line)
    if not held:
        return verdict
    reasons = dict.fromkeys(reason for rank in held for reason in devices[rank].reasons)
    summary = sentences.DEVICE_THROTTLED(
        found=verdict.summary, ranks=labels_text(held), reasons=", ".join(reasons) or "unknown why"
    )
    known = dict.fromkeys(_REMEDIES[reason] for reason in reasons if reason in _REMEDIES)
    remedies = (f"what to do: {remedy}" for remedy in known)
    evidence = (*(lines[rank] for rank in held), *remedies, *verdict.evidence)
    return replace(verdict, cause=THROTTLED, summary=summary, evidence=evidence)


def _line(rank: str, blamed: tuple[str, ...], devices: Mapping[str, DeviceState]) -> str:
    """What the devices say; "" where they do not explain it."""
    own = devices.get(rank)
    if own is None or own.clock_hertz is None or own.throttled_ratio is None:
        return ""
    clocks = [
        state.clock_hertz
        for label, state in devices.items()
        if label not in blamed and state.clock_hertz is not None
    ]
    if not clocks or own.throttled_ratio < _LEAST_THROTTLED:
        return ""
    others = median(clocks)
    if own.clock_hertz > _SLOWER_CLOCK * others:
        return ""
    names = ", ".join(map(device_text, own.names))
    return (
        f"{names} ran at {own.clock_hertz / 1e6:.0f} MHz, devices of the others at "
        f"{others / 1e6:.0f} MHz; its clocks were held down in {own.throttled_ratio:.0%} of the "
        f"last minute: {', '.join(own.reasons)}"
    )


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
