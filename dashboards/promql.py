"""PromQL from the catalogue: a name or a label that does not exist fails when boards are built."""

from __future__ import annotations

from dfx_agent.catalogue.per_rank import RANK_UP
from dfx_agent.catalogue.spec import Metric

# Grafana makes it at least four scrapes, so that one failed scrape leaves no hole.
SCRAPES = "$__rate_interval"
# Ranks are compared over whole steps: the window that the reader chose.
WINDOW = "$window"


def of_run(metric: Metric, **where: str) -> str:
    """The metric's series of the run; ``where`` is label="value", or "~", "!", "!~" before it."""
    unknown = set(where) - set(metric.labels)
    if unknown:
        raise ValueError(f"{metric.name} has no label {min(unknown)}")
    name = f"{metric.name}_info" if metric.kind == "info" else metric.sample_name
    matchers = ['run="$run"', *(_matcher(label, text) for label, text in where.items())]
    return f"{name}{{{','.join(matchers)}}}"


def of_role(metric: Metric, **where: str) -> str:
    """Of the role that the reader selected: two roles may both have a rank 0."""
    return of_run(metric, role="$role", **where)


def of_ranks(metric: Metric, **where: str) -> str:
    """Of the ranks that the reader chose, within the role."""
    return of_role(metric, rank="~$rank", **where)


def of_agents(metric: Metric) -> str:
    """Of the agents that follow the run; what an agent says about itself carries no run."""
    return followed_by_agents(recent(metric.sample_name))


def followed_by_agents(expression: str) -> str:
    """Only from agents that follow the run."""
    return f"{expression} and on (instance) {recent(of_run(RANK_UP))}"


def recent(selector: str) -> str:
    """The latest value, even if the latest scrape failed."""
    return f"last_over_time({selector}[{SCRAPES}])"


def lately(selector: str) -> str:
    """The largest value in the selected window, so that a short verdict stays visible."""
    return f"max_over_time({selector}[{WINDOW}])"


def rate(selector: str, window: str = WINDOW) -> str:
    """Growth of a counter per second, averaged over the window."""
    return f"rate({selector}[{window}])"


def increase(selector: str) -> str:
    """Growth of a counter in the window."""
    return f"increase({selector}[{WINDOW}])"


def buckets(selector: str) -> str:
    """The buckets of a histogram, for a heatmap or ``histogram_quantile``."""
    return selector.replace("{", "_bucket{", 1)


def by(labels: str, aggregation: str, expression: str) -> str:
    """``by("rank", "max", x)``: no pod, instance or job is left, so a restart adds no row."""
    return f"{aggregation} by ({labels}) ({expression})"


def begin(labels: str, selector: str) -> str:
    """Where each such series begins, for 10 s: regions of several would hide what they mark.

    After a gap that is shorter than the window, it does not begin again.
    """
    before = by(labels, "max", f"last_over_time({selector}[{WINDOW}] offset 10s)")
    return f"{by(labels, 'max', selector)} unless {before}"


def against_median(expression: str) -> str:
    """Each rank's value / the median of all ranks."""
    return f"({expression}) / scalar(quantile(0.5, {expression}))"


def _matcher(label: str, text: str) -> str:
    for prefix, operator in (("!~", "!~"), ("!", "!="), ("~", "=~")):
        if text.startswith(prefix):
            return f'{label}{operator}"{text.removeprefix(prefix)}"'
    return f'{label}="{text}"'
