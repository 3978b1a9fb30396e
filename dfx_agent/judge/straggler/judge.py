"""Judges stragglers: which rank makes the other ranks wait, and why.

A slow rank waits least while the others wait for it. The work of a rank in a step is the wall time
without waits for peers. Its excess is its work minus the median work of the other ranks.

There are two ways to a finding:

    witnesses    the rank is last, and uses most CPU time, both more often than chance explains.
                 This works on a busy host too; see ``witnesses``
    excess       the rank works longer than the noise explains in most steps, and neither the host
                 nor an empty data loader explains it; see ``excess`` and ``busy_host``

In both cases the other ranks must have waited during at least half of the excess. If the excess
follows the number of tokens, the cause is "more tokens". If the layout of the job is known, ranks
are compared only with ranks that do the same work. Lower thresholds apply to a rank that is named
already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.layout import NO_LAYOUT, Layout
from dfx_agent.facts.steps import LEAST_SECONDS, TRANSFER, DeviceState, RoleSteps, Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.causes import SLOWER, SLOWER_TOKENS_UNKNOWN
from dfx_agent.judge.straggler.columns import RoleColumns
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

_LEAST_THROTTLED = 0.5  # share of the last minute
_SLOWER_CLOCK = 0.95  # share of the median clock of the other ranks
_HEAT = "look at fans, inlet air or coolant of its node, or drain it"
# by the names that the device backends use
_REMEDIES = {
    "power cap": "give it the power limit of the others; if it has that, look at the power supply",
    "power brake": "its node lacks power and brakes it: look at the power supply, or drain it",
    "software thermal": _HEAT,
    "hardware thermal": _HEAT,
    "hardware slowdown": "look at cooling and power supply of its node; if it stays, drain it",
}


class StragglerJudge:
    """Straggler verdicts of all roles of one run. A role is judged again after each new step."""

    def __init__(self) -> None:
        self._judged: dict[str, tuple[RoleSteps, Verdict]] = {}
        self._columns: dict[str, RoleColumns] = {}
        self._looks: dict[str, Looks] = {}
        self._divisions: dict[str, tuple[Layout, list[str], Division]] = {}

    def verdict(self, facts: RoleSteps) -> Verdict | None:
        """The verdict on a role; None if the role has only one rank in the whole job."""
        if facts.num_ranks == 1 and facts.world_size <= 1:
            return None
        judged_facts, before = self._judged.get(facts.role, (None, None))
        if judged_facts is None or before is None or _has_changed(judged_facts, facts):
            named = before.ranks if before is not None and before.state == "found" else ()
            before = straggler_verdict(
                facts.role, facts.steps, facts.coverage_ratio, named, self._division(facts),
                self._columns.setdefault(facts.role, RoleColumns()),
                self._looks.setdefault(facts.role, Looks()).add(facts.steps),
            )  # fmt: skip
            self._judged[facts.role] = facts, before
        return with_device(before, facts.devices)

    def _division(self, facts: RoleSteps) -> Division | None:
        """The division of the ranks of the latest step; None if the layout is unknown."""
        if not facts.steps or facts.layout == NO_LAYOUT:
            return None
        ranks = list(facts.steps[-1].ranks)
        layout, divided_ranks, division = self._divisions.get(facts.role, (None, None, None))
        if division is None or divided_ranks != ranks or layout != facts.layout:
            division = divided(facts.layout, ranks)
            self._divisions[facts.role] = facts.layout, ranks, division
        return division


def _has_changed(before: RoleSteps, facts: RoleSteps) -> bool:
    return (
        before.steps[-1:] != facts.steps[-1:]
        or before.coverage_ratio != facts.coverage_ratio
        or before.layout != facts.layout
    )


def with_device(verdict: Verdict, devices: Mapping[str, DeviceState]) -> Verdict:
    """The verdict with "device throttled" as cause if it explains why the named ranks are slow."""
    if verdict.state != "found" or verdict.cause not in {SLOWER, SLOWER_TOKENS_UNKNOWN}:
        return verdict
    lines = {rank: _line(rank, verdict.ranks, devices) for rank in verdict.ranks}
    throttled = tuple(rank for rank, line in lines.items() if line)
    if not throttled:
        return verdict
    reasons = dict.fromkeys(reason for rank in throttled for reason in devices[rank].reasons)
    summary = sentences.DEVICE_THROTTLED(
        found=verdict.summary,
        ranks=labels_text(throttled),
        reasons=", ".join(reasons) or "unknown why",
    )
    texts = dict.fromkeys(_REMEDIES[reason] for reason in reasons if reason in _REMEDIES)
    remedies = (f"what to do: {text}" for text in texts)
    evidence = (*(lines[rank] for rank in throttled), *remedies, *verdict.evidence)
    return replace(verdict, cause=THROTTLED, summary=summary, evidence=evidence)


def _line(rank: str, blamed: tuple[str, ...], devices: Mapping[str, DeviceState]) -> str:
    """Evidence that the clocks of a rank were held down; "" if they were not."""
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
    columns: RoleColumns | None = None,
    looks: Sequence[Step] | None = None,
) -> Verdict:
    """The straggler verdict of a role.

    ``steps``: oldest first.
    ``coverage_ratio``: lowest share of recorded collectives of any rank; None if unknown.
    ``named``: ranks of the last verdict, which have lower thresholds.
    ``division``: of the ranks of the latest step; None if the layout is unknown.
    ``columns``: cache of the last verdict.
    ``looks``: see ``Looks``; computed from ``steps`` if None.
    """
    comparable = [step for step in steps if step.ranks.keys() == steps[-1].ranks.keys()]
    # for steps before the agent started, it is unknown whether ranks had CPUs
    observed = [
        step
        for step in comparable
        if all(rank_step.processor is not None for rank_step in step.ranks.values())
    ]
    comparable = observed or comparable
    reason = _reason_to_abstain(comparable, coverage_ratio)
    if reason:
        return Verdict("straggler", "insufficient evidence", role, reason)
    if division is not None and division.doubt:
        return Verdict("straggler", "insufficient evidence", role, division.doubt)
    columns = columns or RoleColumns()
    looks = Looks.from_steps(comparable) if looks is None else looks
    context = Context(named, looks, division is not None and division.is_known)
    if division is None or division.is_plain:
        return Comparison(role, comparable, context, columns.all_ranks).verdict()
    return WholeJob(role, comparable, context, division, columns).verdict()


def _reason_to_abstain(steps: Sequence[Step], coverage_ratio: float | None) -> str:
    """Why these steps cannot be judged; "" if they can."""
    if len(steps) < _FEWEST_STEPS:
        num_seen = num_passed(steps)
        needed = f"{_FEWEST_STEPS} are"
        if num_seen > len(steps):
            needed = f"{seconds_text(_FEWEST_STEPS * LEAST_SECONDS)} of steps are"
        seen = f"{num_seen} step{'s' * (num_seen != 1)}"
        return sentences.TOO_FEW_STEPS(num_steps=seen, needed=needed)
    latest = steps[-_MOST_STEPS:]
    ranks = [rank for step in latest for rank in step.ranks.values()]
    if len(ranks) == len(latest):
        return sentences.ONE_RANK_HERE()
    num_lost = latest[-1].num_lost - latest[0].num_lost
    if num_lost:
        return sentences.RECORDS_LOST(num_lost=num_lost, num_steps=num_passed(latest))
    if coverage_ratio is not None and coverage_ratio < _MIN_COVERAGE_RATIO:
        return sentences.FEW_COLLECTIVES(share=percent(coverage_ratio))
    if not any(rank.waited_seconds or rank.parts[TRANSFER] for rank in ranks):
        return sentences.NO_WAITS()
    return ""
