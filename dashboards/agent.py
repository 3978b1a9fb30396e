"""The agent and the guest about themselves: what is lost, hidden or expensive."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import common as cm

from dashboards import alert_panels
from dashboards.common import (
    CLEAR,
    RED,
    TEAL,
    YELLOW,
    Board,
    as_table,
    background,
    by_threshold,
    cells,
    columns,
    instant,
    limits,
    lines,
    query,
    rank_heatmap,
    thresholds,
    tiles,
    transform,
)
from dashboards.promql import SCRAPES, by, followed_by_agents, of_agents, of_run, rate, recent
from dfx_agent.catalogue import agent, alerting, collectives
from dfx_agent.catalogue.spec import Metric

RANK = "role, rank"


def board() -> Board:
    made = Board(
        "dfx-agent", "dfx: Agent and alerts", file="dashboards/agent.py",
        about="Whether what the other boards show is complete, and what watching costs.",
    )  # fmt: skip
    made.with_window().with_links()
    alert_panels.annotate(made)
    made.row("Verdict: can the other boards be believed?")
    made.line(5, (5, completeness()), (5, overhead()), (5, coverage()), (5, hooks()), (4, agents()))
    made.row("Alerts: what fires, and is it delivered?")
    made.line(
        8, (7, alert_panels.alerts("dfx-agent")), (10, alert_panels.history()), (7, notifications())
    )
    made.folded("What the guests write")
    made.line(8, (8, records()), (8, missing()), (8, overhead_lines()))
    made.line(9, (12, overhead_heatmap()), (12, hook_table()))
    made.folded("What the agents do")
    made.line(8, (6, poll_seconds()), (6, segments()), (6, faults()), (6, unmapped()))
    return made


def of_agents_rate(metric: Metric) -> str:
    """Growth per second, of the agents that follow the run."""
    return followed_by_agents(rate(metric.sample_name, SCRAPES))


def lost() -> str:
    names = (agent.LOST_RECORDS, agent.LATE_RECORDS, agent.GUEST_DROPS)
    return " + ".join(f"sum(increase({of_run(metric)}[{SCRAPES}]))" for metric in names)


def completeness() -> Any:
    panel = tiles(
        "Records missing now",
        "Lost, late or dropped since the last few scrapes. 0 is normal. Anything else: times are "
        "too small by that much; the agent is starved of CPU or the ring is too small.",
        "none",
    )
    panel.with_target(instant(lost(), "records")).text_mode(cm.BigValueTextMode.VALUE)
    panel.color_scheme(by_threshold()).decimals(0)
    return panel.thresholds(limits(TEAL, (0.5, YELLOW), (100, RED)))


def overhead() -> Any:
    panel = tiles(
        "Cost of watching",
        "Share of the time that the guest costs, measured by the guest with cold caches, most "
        "expensive rank. Below 0.1 % is normal for steps of a second and more, up to 0.5 % for "
        "steps of 0.2 s on a CPU; above that `--max-overhead` removes hooks.",
        "percentunit",
    )
    ratio = f"max({by(RANK, 'max', recent(of_run(agent.GUEST_OVERHEAD_RATIO)))})"
    panel.with_target(instant(ratio, "of the step")).text_mode(cm.BigValueTextMode.VALUE)
    panel.color_scheme(by_threshold()).decimals(3).no_value("not measured yet")
    return panel.thresholds(limits(TEAL, (0.005, YELLOW), (0.01, RED)))


def coverage() -> Any:
    panel = tiles(
        "Collectives seen",
        "Recorded, of those the groups counted themselves: the worst rank and group. 100 % is "
        "normal. Below: compiled graphs or functional collectives pass the hooks, so part of the "
        "active time is waiting in truth.",
        "percentunit",
    )
    ratio = f"min({by(f'{RANK}, group', 'min', recent(of_run(collectives.COVERAGE_RATIO)))})"
    panel.with_target(instant(ratio, "seen")).text_mode(cm.BigValueTextMode.VALUE)
    panel.color_scheme(by_threshold()).decimals(0).no_value("no collectives yet")
    return panel.thresholds(limits(RED, (0.5, YELLOW), (0.9, TEAL)))


def hooks() -> Any:
    panel = tiles(
        "Hooks that failed",
        "Hooks that could not be installed, over all ranks. 0 is normal; the table below names "
        "them. The job continues without these observations.",
        "none",
    )
    failed = by(f"{RANK}, name", "max", recent(of_run(agent.PATCH_FAILED)))
    any_hook = by(f"{RANK}, name", "max", recent(of_run(agent.PATCH_ACTIVE)))
    panel.with_target(instant(f"sum({failed}) or 0 * count({any_hook})", "failed"))
    panel.text_mode(cm.BigValueTextMode.VALUE).color_scheme(by_threshold())
    return panel.thresholds(limits(TEAL, (1, RED)))


def agents() -> Any:
    panel = tiles(
        "Agents of the run",
        "One for each node is normal. Fewer: that node's ranks are missing on all boards.",
        "none",
    )
    panel.with_target(instant(f"count({of_agents(agent.AGENT_SEGMENTS)})", "agents"))
    panel.text_mode(cm.BigValueTextMode.VALUE).color_scheme(by_threshold())
    return panel.thresholds(limits(RED, (1, TEAL)))


def notifications() -> Any:
    panel = lines(
        "Notifications of the agents, per second",
        "What the agents deliver themselves (--alertmanager, --webhook). Failed and dropped at 0 "
        "are normal; failed: the receiver did not answer, the agent retries; dropped: not "
        "delivered. Evaluations continue as long as an agent evaluates its rules.",
        "none",
    )
    for ref, name, metric in (
        ("A", "sent", alerting.SENT),
        ("B", "failed", alerting.FAILED),
        ("C", "dropped", alerting.DROPPED),
        ("D", "evaluations", alerting.EVALUATIONS),
        ("E", "evaluations that failed", alerting.EVALUATION_ERRORS),
    ):
        panel.with_target(query(f"sum({of_agents_rate(metric)})", name, ref))
    return panel.min(0)


def records() -> Any:
    panel = lines(
        "Records per second, all ranks",
        "What the guests write. Steady is normal; it follows the number of stages and collectives "
        "in a step. 0 while the job runs: the guests are gone.",
        "none",
    )
    total = f"sum({by(RANK, 'sum', rate(of_run(agent.RECORDS), SCRAPES))})"
    return panel.with_target(query(total, "records")).min(0)


def missing() -> Any:
    panel = lines(
        "Lost, late and dropped records per second",
        "0 is normal, in all three. Lost: the agent read the ring too late; late: a span ended "
        "after its time was accounted; dropped: too many names or an error of the guest.",
        "none",
    )
    for ref, name, metric in (
        ("A", "lost", agent.LOST_RECORDS),
        ("B", "late", agent.LATE_RECORDS),
        ("C", "dropped", agent.GUEST_DROPS),
    ):
        counted = by(RANK, "sum", rate(of_run(metric), SCRAPES))
        panel.with_target(query(f"sum({counted})", name, ref))
    return panel.min(0)


def overhead_lines() -> Any:
    panel = lines(
        "Cost of watching over time",
        "Share of the time, over the ranks. Flat and below 0.5 % is normal; it rises when the "
        "steps get shorter or hooks are added.",
        "percentunit",
    )
    ratio = by(RANK, "max", of_run(agent.GUEST_OVERHEAD_RATIO))
    panel.with_target(query(f"max({ratio})", "most expensive rank"))
    return panel.with_target(query(f"quantile(0.5, {ratio})", "median", "B")).min(0)


def overhead_heatmap() -> Any:
    return rank_heatmap(
        "Cost of watching, each rank",
        "Share of the step time. Black is normal; a bright row does something in its loop that "
        "calls hooks very often.",
        "percentunit",
        by("rank", "max", of_run(agent.GUEST_OVERHEAD_RATIO)),
        ("Inferno", False),
        (0, 0.005),
    )


def hook_table() -> Any:
    panel = cells(
        "Hooks: where the job is observed",
        "Number of ranks on which each hook is active, off or absent, and failed. All ranks active "
        "is normal; off everywhere: this torch has nothing to hook, or a budget disabled it.",
    )
    active = by(f"{RANK}, name", "max", recent(of_run(agent.PATCH_ACTIVE)))
    failed = by(f"{RANK}, name", "max", recent(of_run(agent.PATCH_FAILED)))
    panel.with_target(as_table(instant(f"sum by (name) ({active})", ref="A")))
    panel.with_target(
        as_table(instant(f"count by (name) ({active}) - sum by (name) ({active})", ref="B"))
    )
    panel.with_target(
        as_table(instant(f"sum by (name) ({failed}) or 0 * count by (name) ({active})", ref="C"))
    )
    names = {"name": "Hook", "Value #A": "active", "Value #B": "off", "Value #C": "failed"}
    panel.transformations(
        [
            transform("joinByField", byField="name", mode="outer"),
            columns(names, "Time 1", "Time 2", "Time 3"),
        ]
    )
    worst = thresholds([(None, CLEAR), (1, RED)])
    return panel.override_by_name("failed", [background(), worst])


def poll_seconds() -> Any:
    panel = lines(
        "One reading of all segments",
        "How long an agent takes for it, each agent. Milliseconds are normal; above 0.1 s the "
        "agent is starved, or follows too many processes.",
        "s",
    )
    return panel.with_target(
        query(by("instance", "max", of_agents(agent.AGENT_POLL_SECONDS)), "{{instance}}")
    ).min(0)


def segments() -> Any:
    panel = lines(
        "Segments followed and refused",
        "One for each observed process. Refused ones are of another version, cut short, or another "
        "user's: `dfx-agent ps` says which and what to do.",
        "none",
    )
    panel.with_target(query(f"sum({of_agents(agent.AGENT_SEGMENTS)})", "followed"))
    refused = f"sum by (kind) ({of_agents(agent.AGENT_PROBLEMS)})"
    return panel.with_target(query(refused, "refused: {{kind}}", "B")).min(0)


def faults() -> Any:
    panel = lines(
        "Not read or not judged",
        "Seconds since the run was last judged and since its agents last read everything: a few "
        "are normal. Faults per second at 0 are normal: a process, run or file that the agent "
        "failed on; its log has the traceback, the page and `dfx-agent diagnose` name it.",
        "none",
    )
    judged = f"max({by('run', 'max', of_run(agent.JUDGED_AGE_SECONDS))})"
    panel.with_target(query(judged, "since judged, s"))
    read = f"max({of_agents(agent.READ_AGE_SECONDS)})"
    panel.with_target(query(read, "since read, s", "B"))
    failed = f"sum by (part) ({of_agents_rate(agent.AGENT_FAULTS)})"
    return panel.with_target(query(failed, "faults: {{part}}", "C")).min(0)


def unmapped() -> Any:
    panel = lines(
        "Errors and values left out",
        "Failures of an exporter, and scalars that arrived for steps long past. 0 is normal; see "
        "the agent's log otherwise.",
        "none",
    )
    errors = f"sum({of_agents_rate(agent.EXPORTER_ERRORS)})"
    panel.with_target(query(errors, "exporter errors"))
    stale = by("run", "sum", rate(of_run(agent.STALE_SCALARS), SCRAPES))
    return panel.with_target(query(stale, "stale scalars", "B")).min(0)
