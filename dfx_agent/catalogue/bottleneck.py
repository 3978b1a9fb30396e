"""What holds the pipeline of a run up: the verdict, its cost and its causes."""

from dfx_agent.catalogue.spec import PER_NODE, Metric
from dfx_agent.snapshot import RunRow

_BOUND = (*PER_NODE, "role", "bound_by")


def _state(run: RunRow) -> dict[tuple[str, ...], float]:
    told = run.bottleneck
    if told is None:
        return {}
    component = told.causes[0].component if told.causes else ""
    return {(told.role, told.bound_by or "", told.state, component): 1.0}


def _cost_seconds(run: RunRow) -> dict[tuple[str, ...], float]:
    told = run.bottleneck
    if told is None or told.cost_seconds is None:
        return {}
    return {(told.role, told.bound_by or ""): told.cost_seconds}


def _cost_ratio(run: RunRow) -> dict[tuple[str, ...], float]:
    told = run.bottleneck
    if told is None or told.cost_ratio is None:
        return {}
    return {(told.role, told.bound_by or ""): told.cost_ratio}


def _causes(run: RunRow) -> dict[tuple[str, ...], float]:
    """Of several causes of one component in one unit the most costly, which comes first."""
    told = run.bottleneck
    found: dict[tuple[str, ...], float] = {}
    if told is not None:
        for cause in told.causes:
            if cause.amount is not None:
                labels = told.role, cause.bound_by, cause.component, cause.unit
                found.setdefault(labels, cause.amount)
    return found


STATE = Metric(
    "dfx_bottleneck_state", "gauge", "", (*_BOUND, "state", "component"),
    "1 for what holds the pipeline up in the newest steps: state is found, clear (balanced) or "
    "insufficient evidence; bound_by is stalled, rollout, tool, reward, train, peers, weight sync, "
    "policy gate, data or event loop, empty for none; component costs most. role trains.",
    "derived",
    of="run", value=_state,
)  # fmt: skip
COST_SECONDS = Metric(
    "dfx_bottleneck_cost_seconds", "gauge", "seconds", _BOUND,
    "Time of the mean step of the newest ones that is lost to what holds the pipeline up.",
    "derived",
    of="run", value=_cost_seconds,
)  # fmt: skip
COST_RATIO = Metric(
    "dfx_bottleneck_cost_ratio", "gauge", "ratio", _BOUND,
    "dfx_bottleneck_cost_seconds / the mean step.", "derived",
    of="run", value=_cost_ratio,
)  # fmt: skip
CAUSE_AMOUNT = Metric(
    "dfx_bottleneck_cause_amount", "gauge", "", (*_BOUND, "component", "unit"),
    "What each component costs that holds the pipeline up, in unit (seconds, requests, groups, "
    "times as slow as others); seconds and groups are of a step.", "derived",
    of="run", value=_causes,
)  # fmt: skip

METRICS = (STATE, COST_SECONDS, COST_RATIO, CAUSE_AMOUNT)
