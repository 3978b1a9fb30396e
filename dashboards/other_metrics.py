"""Metrics that no other board draws: one panel for each that the run has, in folded rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as dm

from dashboards import (
    agent,
    e2e_timeline,
    memory_timeline,
    pipeline,
    rank_heatmap,
    training_stability,
)
from dashboards.common import SOURCE, Board, lines, query
from dashboards.promql import followed_by_agents
from dfx_agent.catalogue.spec import Metric, catalogue

_BOARDS = (agent, e2e_timeline, memory_timeline, pipeline, rank_heatmap, training_stability)
_ANY = "max without (instance, job, pod, node, run) ({})"


def add_rows(made: Board, natives: Iterable[Metric]) -> None:
    """``natives``: metrics that the board draws already."""
    drawn = _names_on_boards() | {metric.name for metric in natives}
    others = [m for _, metrics in catalogue() for m in metrics if m.name not in drawn]
    of_run = [metric for metric in others if "run" in metric.labels]
    of_agent = [metric for metric in others if "run" not in metric.labels]
    for title, variable, kind, metrics, draw in (
        ("values of ranks and engines", "other", "gauge", of_run, _value),
        ("growth of counters", "other_counter", "counter", of_run, _growth),
        ("times of engines, median", "histogram", "histogram", of_run, _median),
        ("values of agents and machines", "own", "gauge", of_agent, _own_value),
        ("growth of counters of agents and machines", "own_counter", "counter", of_agent,
         _own_growth),
    ):  # fmt: skip
        found = [metric for metric in metrics if metric.kind == kind]
        made.with_variable(_names(variable, found, is_of_run=metrics is of_run))
        made.folded(f"On no other board: {title}")
        made.line(7, (24, _repeated(variable, draw(variable))))


def _names_on_boards() -> set[str]:
    """Names in the catalogue that a panel of another board queries."""
    boards = [json.loads(JSONEncoder().encode(board.board().build())) for board in _BOARDS]
    rows = [panel for made in boards for panel in made["panels"]]
    panels = [*rows, *(panel for row in rows for panel in row.get("panels") or ())]
    targets = [target for panel in panels for target in panel.get("targets") or ()]
    samples = set(re.findall(r"\bdfx_\w+", " ".join(target["expr"] for target in targets)))
    return {
        metric.name
        for _, metrics in catalogue()
        for metric in metrics
        if samples & {metric.sample_name, f"{metric.name}_info", f"{metric.name}_bucket"}
    }


def _names(variable: str, metrics: Iterable[Metric], *, is_of_run: bool) -> Any:
    """Hidden: all of these metrics that have data."""
    ending = "_bucket" if variable == "histogram" else ""
    any_of = "|".join(sorted(f"{metric.sample_name}{ending}" for metric in metrics))
    run = ',run="$run"' if is_of_run else ""
    text = f'label_values({{__name__=~"{any_of}"{run}}}, __name__)'
    made = dashboard.QueryVariable(variable).datasource(SOURCE).multi(True).include_all(True)
    made.query({"query": text, "refId": variable}).sort(dm.VariableSort.NATURAL_ASC)
    made.refresh(dm.VariableRefresh.ON_TIME_RANGE_CHANGED).hide(dm.VariableHide.HIDE_VARIABLE)
    return made.current(dm.VariableOption(text="All", value="$__all", selected=True))


def _repeated(variable: str, expression: str) -> Any:
    panel = lines(
        f"${variable}",
        "A metric that no other board draws, each label by itself. Meaning and unit are in "
        "docs/metrics.md under this name. Counters are drawn by their growth per second.",
        "short",
    ).fill_opacity(0)
    panel.repeat(variable).repeat_direction("h").max_per_row(4)
    return panel.with_target(query(expression))


def _value(variable: str) -> str:
    return _ANY.format(f'{{__name__="${variable}",run="$run"}}')


def _growth(variable: str) -> str:
    return _ANY.format(f'rate({{__name__="${variable}",run="$run"}}[$window])')


def _median(variable: str) -> str:
    buckets = f'rate({{__name__="${variable}",run="$run"}}[$window])'
    return f"histogram_quantile(0.5, sum by (replica, dp_rank, le) ({buckets}))"


def _own_value(variable: str) -> str:
    return _of_agents(f'{{__name__="${variable}"}}')


def _own_growth(variable: str) -> str:
    return _of_agents(f'rate({{__name__="${variable}"}}[$window])')


def _of_agents(expression: str) -> str:
    return f"max without (job, pod) ({followed_by_agents(expression)})"
