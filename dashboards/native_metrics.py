"""Native metrics: all metrics that frameworks report, one panel for each metric of the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import common as cm
from grafana_foundation_sdk.models import dashboard as dm

from dashboards import alert_panels, other_metrics
from dashboards.common import (
    GREY,
    SOURCE,
    TEAL,
    YELLOW,
    Board,
    as_table,
    by_threshold,
    cells,
    columns,
    instant,
    limits,
    lines,
    query,
    tiles,
)
from dashboards.promql import by, of_run, recent
from dfx_agent.catalogue import agent
from dfx_agent.catalogue.native import frameworks, load
from dfx_agent.catalogue.spec import Metric, catalogue

CLASS, GAUGE, COUNTER = "class", "metric", "counter"


def board() -> Board:
    made = Board(
        "dfx-native", "dfx: Native metrics", file="dashboards/native_metrics.py",
        about="Every metric that the framework itself sends, by its name in the catalogue, and "
        "all metrics that no other board draws.",
    )  # fmt: skip
    made.with_variable(classes())
    made.with_variable(names(GAUGE, "Metric", is_counter=False))
    made.with_variable(names(COUNTER, "Counter", is_counter=True))
    made.with_window().with_links()
    alert_panels.annotate(made)
    made.row("Verdict: is what the framework sends understood?")
    made.line(7, (4, num_unknown()), (20, unknown()))
    made.row("Values")
    made.line(7, (24, gauge()))
    made.folded("Growth of counters")
    made.line(7, (24, counter()))
    other_metrics.add_rows(made, (m for found in natives().values() for m in found))
    return made


def natives() -> dict[str, list[Metric]]:
    """Class of the catalogue -> its metrics that some framework is known to send."""
    sent = {entry.metric for name in frameworks() for entry in load(name).entries()}
    found = {
        group: [m for m in metrics if m.name in sent or m.source == "native"]
        for group, metrics in catalogue()
    }
    return {group: metrics for group, metrics in found.items() if metrics}


def waiting() -> list[str]:
    """Metrics that no release of a framework sends yet."""
    return sorted(m.name for _, metrics in catalogue() for m in metrics if m.upstream)


def any_of(metrics: Iterable[Metric]) -> str:
    """A regular expression of their sample names."""
    return "|".join(sorted(metric.sample_name for metric in metrics))


def classes() -> Any:
    """One class of the catalogue, or all of them."""
    by_class = {group.replace("_", " "): any_of(found) for group, found in natives().items()}
    everything = {"all": any_of(m for found in natives().values() for m in found)}
    choices = {**everything, **by_class}
    variable = dashboard.CustomVariable(CLASS).label("Class")
    options = [
        dm.VariableOption(text=text, value=value, selected=text == "all")
        for text, value in choices.items()
    ]
    variable.values(", ".join(f"{text} : {value}" for text, value in choices.items()))
    return variable.options(options).current(options[0])


def names(variable: str, label: str, *, is_counter: bool) -> Any:
    """Of the class, what the run has; a counter is drawn by its growth."""
    counters = [m for found in natives().values() for m in found if m.kind == "counter"]
    ending = "=~" if is_counter else "!~"
    matchers = f'__name__=~"${{{CLASS}:raw}}",__name__{ending}"{any_of(counters)}",run="$run"'
    text = f"label_values({{{matchers}}}, __name__)"
    made = dashboard.QueryVariable(variable).label(label).datasource(SOURCE).multi(True)
    made.query({"query": text, "refId": variable}).sort(dm.VariableSort.NATURAL_ASC)
    made.refresh(dm.VariableRefresh.ON_TIME_RANGE_CHANGED).include_all(True)
    return made.current(dm.VariableOption(text="All", value="$__all", selected=True))


def num_unknown() -> Any:
    panel = tiles(
        "Keys that are not mapped",
        "Number of keys that the job logs and no mapping contains, over all ranks. 0 is normal for "
        "a framework of the list in docs/metrics.md. The keys are listed on the right.",
        "none",
    )
    panel.with_target(instant(f"sum({recent(of_run(agent.UNMAPPED_KEYS))})", "keys"))
    panel.text_mode(cm.BigValueTextMode.VALUE).color_scheme(by_threshold())
    steps = limits(GREY, (0, TEAL), (1, YELLOW))
    return panel.thresholds(steps).no_value("no framework has sent any")


def unknown() -> Any:
    panel = cells(
        "Keys that are not mapped, with their latest value",
        "As the job logs them (mean over ranks). An empty table is normal. To map a metric of your "
        "framework to a dfx name, use `--map` or open an issue.",
    )
    value = by("role, framework, key", "avg", recent(of_run(agent.NATIVE_METRIC)))
    panel.with_target(as_table(instant(value)))
    heads = {"role": "Role", "framework": "Framework", "key": "Key", "Value": "Value"}
    return panel.transformations([columns(heads)])


def _repeated(title: str, about: str, variable: str) -> Any:
    panel = lines(title, about, "short").fill_opacity(0)
    panel.repeat(variable).repeat_direction("h").max_per_row(4)
    return panel


def gauge() -> Any:
    panel = _repeated(
        f"${GAUGE}",
        "A metric that the framework sends, each role, rank and label by itself. Meaning and unit "
        "are in docs/metrics.md under this name. Choose a class above to see fewer. Waiting for "
        f"upstream, so that no released framework sends them: {', '.join(waiting())}.",
        GAUGE,
    )
    return panel.with_target(query(_all_of(f'{{__name__="${GAUGE}",run="$run"}}')))


def counter() -> Any:
    panel = _repeated(
        f"${COUNTER}, per second",
        "Growth of a counter that the framework sends, over the window above. Meaning and unit "
        "are in docs/metrics.md under this name.",
        COUNTER,
    )
    growth = f'rate({{__name__="${COUNTER}",run="$run"}}[$window])'
    return panel.with_target(query(_all_of(growth)))


def _all_of(selector: str) -> str:
    """Every label of the metric itself, and none that a restart changes."""
    return f"max without (instance, job, pod, node, run) ({selector})"
