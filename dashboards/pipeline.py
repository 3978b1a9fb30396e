"""Pipeline: where an asynchronous job waits, from the bottleneck down to each replica and part."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models import common as cm
from grafana_foundation_sdk.models import dashboard as dm

from dashboards import alert_panels, engine_panels
from dashboards.common import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    TEAL,
    YELLOW,
    Board,
    as_table,
    background,
    bars,
    by_threshold,
    cells,
    colored,
    columns,
    dashed,
    instant,
    limits,
    lines,
    prop,
    query,
    stacked,
    states,
    tiles,
    values,
)
from dashboards.promql import buckets, by, lately, of_run, rate, recent
from dfx_agent.catalogue import bottleneck, engines, event_loop, per_rank, weight_sync
from dfx_agent.catalogue.spec import Metric, by_name

FOUND, UNSURE, CLEAR, UNJUDGED = 3, 1, 0, -1
EARLY = "not judged yet"
LOADED = "{{replica}} loaded from {{source}}, as it says"
STATES = values(
    (str(UNJUDGED), EARLY, GREY), (str(CLEAR), "nothing stands out", TEAL),
    (str(UNSURE), "not enough evidence", GREY), (str(FOUND), "HELD UP", ORANGE),
)  # fmt: skip
PARTS = {"pause": "#e0787c", "gather": "#86e6d5", "transfer": "#58d2fc", "load": "#597cdf",
         "resume": "#5fb98c"}  # fmt: skip


def board() -> Board:
    made = Board(
        "dfx-pipeline", "dfx: Pipeline", file="dashboards/pipeline.py",
        about="Waits in an asynchronous job: engines, tools, queues, learner.",
    )  # fmt: skip
    replicas = engine_panels.replica_variable().include_all(True)
    replicas.current(dm.VariableOption(text="All", value="$__all", selected=True))
    made.with_variable(replicas).with_window().with_links()
    alert_panels.annotate(made)
    made.row("Verdict: what holds the pipeline up, and what does it cost?")
    made.line(
        6,
        (4, verdict()),
        (9, causes()),
        (4, lost_share()),
        (7, alert_panels.alerts("dfx-pipeline")),
    )
    made.line(5, (24, history()))
    made.row("Waits")
    made.line(9, (10, waits()), (7, learner_waits()), (7, queues()))
    made.folded("Rollout engines, each replica by itself")
    made.line(8, (8, engine_panels.requests()), (8, engine_panels.busy()),
              (8, engine_panels.tokens()))  # fmt: skip
    made.line(8, (8, engine_panels.first_token()), (8, engine_panels.between_tokens()),
              (8, engine_panels.kv_cache()))  # fmt: skip
    made.folded("How old samples are, and what becomes of them")
    made.line(8, (6, lag()), (6, lag_origin()), (6, partial()), (6, dropped()))
    made.folded("Weight sync and event loops")
    made.line(8, (6, sync_parts()), (6, receivers()), (6, loop_lag()), (6, holders()))
    made.folded("Inside an episode")
    made.line(8, (8, environments()), (8, episodes()), (8, given_up()))
    made.folded("More: requests of the engines")
    made.line(
        8, (8, engine_panels.whole_request()), (8, engine_panels.read_and_written()),
        (8, engine_panels.preemptions()),
    )  # fmt: skip
    return made


def _named(name: str) -> Metric:
    return by_name()[name]


def verdict() -> Any:
    panel = tiles(
        "Bottleneck",
        "The agent's verdict on the latest steps. 'nothing stands out' is normal: no component "
        "waits long for another. HELD UP is no fault: the panel on the right shows the component "
        "and its cost; start there. 'not judged yet': too few steps.",
        "none",
    )
    now = _states(lately)
    waiting = f"0 * max({recent(of_run(per_rank.RANK_UP))}) - 1"
    panel.with_target(instant(f"max({now}) or ({waiting})", "bottleneck"))
    panel.mappings([STATES]).color_scheme(by_threshold()).thresholds(limits(GREY))
    panel.text_mode(cm.BigValueTextMode.VALUE)
    return panel.text(common.VizTextDisplayOptions().value_size(24))


def _states(window: Any) -> str:
    states = (("found", FOUND), ("insufficient evidence", UNSURE), ("clear", CLEAR))
    return " or ".join(
        f"{window(of_run(bottleneck.STATE, state=state))} * {value}" for state, value in states
    )


def causes() -> Any:
    panel = cells(
        "What holds it up",
        "One line per component that costs time, most costly first: what the pipeline is bound by, "
        "and the cost (seconds and groups per step; times: how many times slower than the others). "
        "'nothing found' is normal. The agent's page shows the chain of waits.",
    )
    found = by("bound_by, component, unit", "max", lately(of_run(bottleneck.CAUSE_AMOUNT)))
    unsized = by("bound_by, component, unit", "max", lately(of_run(bottleneck.CAUSE_ACTIVE)))
    rows = f"sort_desc({found} or {unsized} * 0)"
    panel.with_target(as_table(instant(f"{rows} or ({_without_causes()})")))
    panel.transformations(
        [columns({"bound_by": "Bound by", "component": "Component", "Value": "How much",
                  "unit": "Unit"})]
    )  # fmt: skip
    everything = dm.RegexMap(
        options=dm.DashboardRegexMapOptions(
            pattern=".+", result=dm.ValueMappingResult(color=ORANGE, index=3)
        )
    )
    calm = values(
        ("clear", "nothing stands out", TEAL),
        ("insufficient evidence", "not enough evidence", GREY), (EARLY, EARLY, GREY),
    )  # fmt: skip
    panel.override_by_name("Bound by", [background(), prop("mappings", [calm, everything])])
    nothing = values(("0", "–", GREY))
    panel.override_by_name("How much", [prop("mappings", [nothing])])
    panel.override_by_name("How much", [prop("decimals", 2), prop("custom.width", 90)])
    return panel.override_by_name("Unit", [prop("custom.width", 80)])


def _without_causes() -> str:
    """One row while no component is named: what is felt and its cost, or why nothing is."""
    named = lately(of_run(bottleneck.CAUSE_ACTIVE))
    cost = by("bound_by", "max", lately(of_run(bottleneck.COST_SECONDS)))
    felt = f'label_replace({cost}, "unit", "seconds", "", "")'
    state = by("state", "max", recent(of_run(bottleneck.STATE, state="!found"))) + " * 0"
    why = by("bound_by", "max", f'label_replace({state}, "bound_by", "$1", "state", "(.*)")')
    alive = f"0 * max({recent(of_run(per_rank.RANK_UP))})"
    early = f'label_replace({alive}, "bound_by", "{EARLY}", "", "")'
    any_of = " unless on () "
    rows = f"{felt}{any_of}{named}"
    rows += f" or ({why}{any_of}({named} or {cost}))"
    return f"{rows} or ({early}{any_of}{lately(of_run(bottleneck.STATE))})"


def lost_share() -> Any:
    panel = tiles(
        "Share of a step lost",
        "How much of the mean step goes to what holds the pipeline up: that much faster the job "
        "could be at best. Of a synchronous job: its longest wait. Below 10 % is normal. 'none': "
        "nothing stands out; 'not known': there is not enough evidence.",
        "percentunit",
    )
    cost = by("bound_by", "max", lately(of_run(bottleneck.COST_RATIO)))
    longest = by("part", "max", lately(of_run(bottleneck.STEP_SHARE_RATIO, kind="wait")))
    waited = f'label_replace(topk(1, {longest}), "bound_by", "$1", "part", "(.*)")'
    lost = f"({cost} or ({waited} unless on () {cost}))"
    balanced = by("bound_by", "max", recent(of_run(bottleneck.STATE, state="clear"))) + " * 0"
    alive = f"0 * max({recent(of_run(per_rank.RANK_UP))}) - 1"
    other = f"{balanced} or ({alive} unless on () {balanced})"
    panel.with_target(instant(f"{lost} or ({other}) unless on () ({lost})", "{{bound_by}}"))
    panel.color_scheme(by_threshold())
    panel.thresholds(limits(GREY, (0, TEAL), (0.1, ORANGE)))
    return panel.mappings([values(("0", "none", TEAL), ("-1", "not known", GREY))]).decimals(0)


def history() -> Any:
    panel = states(
        "Bottleneck over time",
        "A lane for each thing that the pipeline was bound by, while it was. A lane that "
        "begins together with an annotation (an alert, a checkpoint) is a change; one that is "
        "always there is how the job is divided: see the ratio of pools in `dfx-agent diagnose`.",
        [STATES],
    )
    found = by("bound_by", "max", f"{of_run(bottleneck.STATE, state='found')} * {FOUND}")
    panel.with_target(query(found, "{{bound_by}}"))
    none = f"{_states(str)} or 0 * max({of_run(per_rank.RANK_UP)}) - 1"
    panel.with_target(query(f"max({none})", "pipeline", "B"))
    return panel.max_data_points(300)


def waits() -> Any:
    panel = lines(
        "Waits of each role",
        "Share of the processes' time spent waiting, by what for. collector: the learner waits for "
        "samples; queue: waits for work, or for room; remote: for a server's answer; "
        "barrier: for other ranks. One role that waits for 80 % while another never does: the "
        "other one is the bottleneck.",
        "percentunit",
    )
    waited = by("role, kind", "sum", rate(of_run(per_rank.WAIT_SECONDS)))
    wall = by("role", "sum", rate(of_run(per_rank.WALL_SECONDS)))
    share = f"{waited} / on (role) group_left () {wall}"
    return panel.with_target(query(share, "{{role}}: {{kind}}")).min(0).max(1).fill_opacity(0)


def learner_waits() -> Any:
    panel = stacked(
        "What the learner waits for, as the framework reports it",
        "Seconds of a step; the causes are never merged: data is for samples, barrier for the "
        "other ranks, replay for tensors of samples that are there. Near 0 is normal where the "
        "learner is the bottleneck. Growing data: see engines and queues below.",
        "s",
    )
    cause = by("cause", "max", of_run(_named("dfx_learner_wait_seconds")))
    return panel.with_target(query(cause, "{{cause}}"))


def queues() -> Any:
    panel = lines(
        "Queues",
        "Items in each queue of the run. It fills and empties: normal. Always full: the "
        "consumer is too slow, and samples grow stale; always empty: the producer is too slow.",
        "none",
    )
    depth = by("role, queue", "sum", of_run(per_rank.QUEUE_DEPTH, stat=""))
    return panel.with_target(query(depth, "{{role}}: {{queue}}")).min(0).fill_opacity(0)


def lag() -> Any:
    panel = lines(
        "Policy lag",
        "Weight versions between generating and training, mean and largest; worst: by the oldest "
        "tokens of a trajectory. Steady at what the job is set to is normal. Rising: samples wait "
        "too long (a full queue) or take too long (slow requests).",
        "none",
    )
    latest = of_run(_named("dfx_policy_lag_versions"), stat="~mean|max", variant="", scope="",
                    ref="")  # fmt: skip
    oldest = of_run(_named("dfx_policy_lag_worst_versions"), stat="~mean|max")
    panel.with_target(query(by("stat", "max", latest), "{{stat}}"))
    panel.with_target(query(by("stat", "max", oldest), "{{stat}}, worst", "B"))
    panel.override_by_regexp("max.*", dashed())
    return panel.min(0).fill_opacity(0)


def lag_origin() -> Any:
    panel = stacked(
        "Where the lag arises",
        "Part of the mean lag that a sample spends being generated (in_flight) and waiting to be "
        "trained on (in_queue). Mostly in the queue: the learner is too slow, or too many groups "
        "are in flight; mostly in flight: long or slow requests.",
        "none",
    )
    parts = by("part", "max", of_run(_named("dfx_policy_lag_queue_versions"), stat="mean"))
    return panel.with_target(query(parts, "{{part}}"))


def partial() -> Any:
    panel = lines(
        "Partial rollouts",
        "Share of the trajectories whose weights changed while they were generated. High is how "
        "partial rollout works. Near 100 % with a growing lag: requests are longer than several "
        "steps; near 0 with a pause at each weight sync: nothing is resumed.",
        "percentunit",
    )
    ratio = by("role", "max", of_run(_named("dfx_partial_rollout_ratio")))
    return panel.with_target(query(ratio, "{{role}}")).min(0).max(1)


def dropped() -> Any:
    panel = stacked(
        "Groups dropped in a step, by reason",
        "What was generated and is not trained on: filtered (zero_std: all answers score the same),"
        " stale, or failed. Filtered groups are normal early in training. Stale ones: see the lag "
        "on the left; failed ones: see the aborted requests below.",
        "none",
        is_bars=True,
    )
    filtered = by("why", "max", of_run(_named("dfx_filtered_groups")))
    stale = by("action", "max", of_run(_named("dfx_step_stale_samples")))
    failed = of_run(_named("dfx_step_rollout_failures"), env="", subset="", agent="")
    panel.with_target(query(filtered, "filtered: {{why}}"))
    panel.with_target(query(stale, "stale: {{action}}", "B"))
    return panel.with_target(query(by("why", "max", failed), "failed: {{why}}", "C"))


def sync_parts() -> Any:
    panel = stacked(
        "Weight sync, part by part",
        "Seconds of the last weight sync: until the engines are paused (pause), until one rank has "
        "all weights (gather), sending them (transfer), until the engines use them (load), and "
        "until they run again (resume). A long pause is long requests; for a long transfer, see "
        "the receivers on the right.",
        "s",
        is_bars=True,
    )
    parts = by("part", "max", of_run(weight_sync.UPDATE_SECONDS, receiver=""))
    panel.with_target(query(parts, "{{part}}"))
    for part, color in PARTS.items():
        panel.override_by_name(part, colored(color))
    return panel


def receivers() -> Any:
    panel = lines(
        "Weight sync of each receiver",
        "Seconds of all parts; dashed: the transfer only, and what an engine reports for its "
        "latest load (SGLang) or the median of its updates (vLLM). Equal values are normal. All "
        "engines wait for a receiver far above the others: check its network and its node.",
        "s",
    )
    series = of_run(weight_sync.UPDATE_SECONDS, receiver="!")
    sending = of_run(weight_sync.UPDATE_SECONDS, receiver="!", part="transfer")
    panel.with_target(query(by("receiver", "sum", series), "receiver {{receiver}}"))
    panel.with_target(query(by("receiver", "max", sending), "transfer to {{receiver}}", "B"))
    load = engine_panels.of_replicas(engines.WEIGHT_LOAD)
    update = rate(buckets(engine_panels.of_replicas(_named("dfx_engine_weight_update_seconds"))))
    half = f"histogram_quantile(0.5, {by('replica, le', 'sum', update)})"
    panel.with_target(query(by("replica, source", "max", load), LOADED, "C"))
    panel.with_target(query(half, "{{replica}} updated, as it says", "D"))
    panel.override_by_regexp("transfer .*", dashed())
    return panel.min(0).fill_opacity(0)


def loop_lag() -> Any:
    panel = lines(
        "Event loops: lag",
        "Delay of a callback in the event loop of each process, in the worst 1 % of the last "
        "minute. Below 0.1 s is normal. From 0.5 s the process sends requests and reads answers "
        "late, so that engines idle. The panel on the right shows the code that blocked the loop.",
        "s",
    )
    late = by("role, rank", "max", of_run(event_loop.LAG_SECONDS, stat="p99"))
    panel.with_target(query(late, "{{role}} {{rank}}"))
    panel.thresholds(limits("transparent", (0.5, RED))).min(0)
    return panel.thresholds_style(
        common.GraphThresholdsStyleConfig().mode(cm.GraphThresholdsStyleMode.LINE)
    )


def holders() -> Any:
    panel = bars(
        "Who held an event loop",
        "Code that blocked an event loop in the last minute, and for how long: coroutine > "
        "function > innermost function. Short bars are normal. Move code with a long bar into a "
        "thread or a process, or split it.",
        "s",
    )
    held = by("role, holder", "max", recent(of_run(event_loop.HELD_SECONDS)))
    panel.with_target(instant(f"topk(8, {held})", "{{role}}: {{holder}}"))
    panel.no_value("nobody in the last minute")
    steps = limits(BLUE, (1, YELLOW), (5, RED))
    return panel.min(0).color_scheme(by_threshold()).thresholds(steps)


def environments() -> Any:
    panel = lines(
        "A turn: generation, tools, scoring",
        "Mean seconds of a turn in each part, by environment (all: all of them together). "
        "Generation is most of it in a healthy job. Tools above it: the tool servers hold the "
        "pipeline up, not the engines. One environment far above the others: it makes the batch "
        "wait.",
        "s",
    )
    series = of_run(_named("dfx_turn_seconds"), stat="mean")
    panel.with_target(query(by("env, part", "max", series), "{{env}}: {{part}}"))
    panel.override_by_regexp("all: .*", [prop("custom.lineWidth", 3)])
    return panel.min(0).fill_opacity(0)


def episodes() -> Any:
    panel = lines(
        "An episode: generation, tools, scoring",
        "Mean seconds of one sample in each part, from request to result, whatever the number of "
        "turns. Longer than a step: samples are old when they are trained on, see the lag above.",
        "s",
    )
    none = {"variant": "", "env": "", "subset": "", "agent": "", "domain": ""}
    latency = of_run(_named("dfx_request_latency_seconds"), stat="mean", phase="", **none)
    tool = of_run(_named("dfx_tool_seconds"), stat="mean", variant="")
    scored = of_run(_named("dfx_reward_seconds"), stat="mean", variant="", domain="", env="")
    parts = {"generation": (latency, BLUE), "tools": (tool, YELLOW), "scoring": (scored, TEAL)}
    for ref, (name, (selector, color)) in zip("ABC", parts.items(), strict=True):
        panel.with_target(query(by("stat", "max", selector), name, ref))
        panel.override_by_name(name, colored(color))
    return panel.min(0).fill_opacity(0)


def given_up() -> Any:
    panel = lines(
        "Requests that are given up",
        "Share of the samples of a step that were lost, by reason, as the framework reports it; "
        "dashed: what each engine aborted per second. 0 is normal. More than a few percent: "
        "time-outs of a client, or a server that hangs; the alert DfxRolloutAborted fires at 10 %.",
        "percentunit",
    )
    where = {"stat": "~|mean", "env": "", "subset": "", "agent": ""}
    panel.with_target(query(by("why", "max", of_run(_named("dfx_aborted_ratio"), **where)),
                            "{{why}}"))  # fmt: skip
    aborted = rate(engine_panels.of_replicas(_named("dfx_engine_aborted_requests")))
    panel.with_target(query(by("replica", "sum", aborted), "replica {{replica}}", "B"))
    panel.override_by_regexp("replica .*", [*dashed(), prop("unit", "reqps")])
    return panel.min(0).axis_soft_max(0.2).fill_opacity(0)
