"""Time of a step by part, and the bottleneck of a run: its cost and its causes."""

from collections.abc import Callable

from dfx_agent.catalogue.spec import PER_NODE, Metric, Values
from dfx_agent.snapshot import PipelineCause, RunRow

_BOUND = (*PER_NODE, "role", "bound_by")
_CAUSE = (*_BOUND, "kind", "component", "unit")
_PART = (*PER_NODE, "role", "part", "kind")


def _state(run: RunRow) -> dict[tuple[str, ...], float]:
    verdict = run.bottleneck
    if verdict is None:
        return {}
    component = verdict.causes[0].component if verdict.causes else ""
    return {(verdict.role, verdict.bound_by or "", verdict.state, component): 1.0}


def _cost_seconds(run: RunRow) -> dict[tuple[str, ...], float]:
    verdict = run.bottleneck
    if verdict is None or verdict.cost_seconds is None:
        return {}
    return {(verdict.role, verdict.bound_by or ""): verdict.cost_seconds}


def _cost_ratio(run: RunRow) -> dict[tuple[str, ...], float]:
    verdict = run.bottleneck
    if verdict is None or verdict.cost_ratio is None:
        return {}
    return {(verdict.role, verdict.bound_by or ""): verdict.cost_ratio}


def _causes(run: RunRow, value: Callable[[PipelineCause], float | None]) -> Values:
    """Cost of each component by unit; of several costs the largest, which is the first."""
    verdict = run.bottleneck
    found: dict[tuple[str, ...], float] = {}
    for cause in verdict.causes if verdict is not None else ():
        number = value(cause)
        if verdict is not None and number is not None:
            labels = verdict.role, cause.bound_by, cause.kind, cause.component, cause.unit
            found.setdefault(labels, number)
    return found


def _parts(run: RunRow) -> Values:
    verdict = run.bottleneck
    if verdict is None:
        return {}
    return {(verdict.role, part.name, part.kind): part.ratio for part in verdict.parts}


STATE = Metric(
    "dfx_bottleneck_state", "gauge", "", (*_BOUND, "state", "component"),
    "1 for the verdict on the latest steps: state is found, clear or insufficient evidence. "
    "bound_by is stalled, rollout, tool, reward, train, peers, weight sync, policy gate, data or "
    "event loop, and empty where training and rollout take turns: see dfx_step_share_ratio. "
    "component costs most. role trains.",
    "derived",
    subject="run", value=_state,
)  # fmt: skip
COST_SECONDS = Metric(
    "dfx_bottleneck_cost_seconds", "gauge", "seconds", _BOUND,
    "Time per step that is lost to the bottleneck of the pipeline, mean of the latest steps.",
    "derived",
    subject="run", value=_cost_seconds,
)  # fmt: skip
COST_RATIO = Metric(
    "dfx_bottleneck_cost_ratio", "gauge", "ratio", _BOUND,
    "dfx_bottleneck_cost_seconds / the mean step.", "derived",
    subject="run", value=_cost_ratio,
)  # fmt: skip
CAUSE_ACTIVE = Metric(
    "dfx_bottleneck_cause_active", "gauge", "", _CAUSE,
    "1 for each component that holds the pipeline up. kind is the problem: still engine, "
    "slow engine, lost engine, few requests, stale samples, weight sync, slow tool, slow reward, "
    "held loop, slow rank or hang.", "derived",
    subject="run", value=lambda run: _causes(run, lambda _: 1.0),
)  # fmt: skip
CAUSE_AMOUNT = Metric(
    "dfx_bottleneck_cause_amount", "gauge", "", _CAUSE,
    "Cost of each component that holds the pipeline up, in unit (seconds, requests, groups, "
    "times as slow as others); seconds and groups are per step.", "derived",
    subject="run", value=lambda run: _causes(run, lambda cause: cause.amount),
)  # fmt: skip
CAUSE_SINCE_STEP = Metric(
    "dfx_bottleneck_cause_since_step", "gauge", "", _CAUSE,
    "Step since which the component costs more than its own baseline; absent if it has no "
    "baseline, or if its cost did not change.", "derived",
    subject="run", value=lambda run: _causes(run, lambda cause: cause.since_step),
)  # fmt: skip

STEP_SHARE_RATIO = Metric(
    "dfx_step_share_ratio", "gauge", "ratio", _PART,
    "Share of the mean step of a mean rank by part, in the latest steps of the role that trains. "
    "The parts of a role sum to 1: a wait inside a stage is a wait. kind is work, wait, unmarked "
    "(inside no stage and no wait) or other (the smallest parts).", "derived",
    subject="run", value=_parts,
)  # fmt: skip
