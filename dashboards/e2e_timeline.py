"""E2E timeline: where the time of a step goes, from the verdict down to single stages."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models import common as cm
from grafana_foundation_sdk.models import dashboard as dm

from dashboards import alert_panels, device_panels, stage_panels, verdict_row
from dashboards.common import (
    BLUE,
    CLEAR,
    GREY,
    ORANGE,
    RED,
    TEAL,
    YELLOW,
    Board,
    as_table,
    bars,
    by_threshold,
    colored,
    instant,
    joined_by_rank,
    limits,
    lines,
    listed,
    query,
    rank_bars,
    stacked,
    states,
    tiles,
    transform,
    trend,
    values,
)
from dashboards.promql import SCRAPES, begin, by, of_ranks, of_role, of_run, rate, recent
from dfx_agent.catalogue import learner_time, per_rank, performance, utilisation, verdicts

# As on the agent's page.
STAGES = {
    "rollout": "#597cdf", "reward": "#dbc81c", "old_logprob": "#378f90", "ref_logprob": "#86e6d5",
    "values": "#a1ae03", "advantage": "#b798c1", "actor_update": "#d26742", "forward": "#ebcb91",
    "backward": "#c1470d", "optimizer": "#995670", "communication": "#aea17e",
    "critic_update": "#9549a8", "weight_sync": "#58d2fc", "offload": "#99a1fe",
    "validation": "#cf608e", "checkpoint": "#c6b2a2",
}  # fmt: skip
IDLE = "#3a4250"
WAITS = {
    "collective": "#dca443", "barrier": "#e0787c", "queue": "#5fb98c", "policy": "#3f7f5c",
    "collector": "#6fa8e8", "replay_batch": "#3f6fa8", "sync_coordination": "#a84f52",
    "logger": "#9a93a8", "remote": "#4fb0b8",
}  # fmt: skip
EXACT_SAMPLES = 2  # of each step
NEED_INTERVAL = (
    "Boundaries are exact to the millisecond while a step has at least 2 samples: see 'Samples per "
    "step'. With fewer, stages are missing and the one before is drawn too long: shorten the range."
)


def board() -> Board:
    made = Board(
        "dfx-e2e", "dfx: E2E timeline", file="dashboards/e2e_timeline.py", opens="now-5m",
        about="Where the time of each step goes, rank by rank, and who makes the others wait.",
    )  # fmt: skip
    made.with_role().with_ranks(is_first_node_only=True).with_variable(lane_variable())
    made.with_window().with_links()
    annotate(made)
    made.row("Verdict: which rank is slow, and what does it cost?")
    made.line(
        6, (3, verdict_row.verdicts()), (7, verdict_row.blamed()),
        (5, alert_panels.alerts("dfx-e2e")), (3, verdict_row.lost_seconds()), (3, step_now()),
        (3, bubble_now()),
    )  # fmt: skip
    made.line(8, (10, rank_shares()), (14, verdict_row.history()))
    made.row("What each rank does, exactly")
    made.line(9, (21, timeline()), (3, exactness()))
    made.line(8, (24, lanes()))
    made.folded("Where the time goes")
    made.line(9, (9, step_split()), (9, time_shares()), (6, in_flight()))
    made.line(8, (12, learner_split()), (12, collector_shares()))
    made.folded("What the devices do")
    made.line(
        10, (13, device_panels.stage_matrix()), (7, device_panels.stage_bars()),
        (4, device_panels.held_down()),
    )  # fmt: skip
    made.folded("How fast")
    made.line(8, (8, step_trend()), (8, tokens()), (8, bubble()))
    made.line(8, (12, tokens_per_gpu()), (12, queues()))
    made.line(8, (12, mfu()), (12, samples()))
    made.folded("More: speed and failures of each stage")
    made.line(8, (12, stage_panels.samples()), (12, stage_panels.tokens()))
    made.line(8, (12, stage_panels.failures()), (12, stage_panels.reward_seconds()))
    made.folded("More: speed as the framework reports it")
    made.line(8, (24, framework_stages()))
    return made


def annotate(made: Board) -> None:
    alert_panels.annotate(made)
    blamed = begin("kind, cause, rank", of_run(verdicts.VERDICT_ACTIVE))
    made.annotation("Verdict", RED, blamed, text="{{kind}}: {{cause}}, rank {{rank}}")
    for stage, color in (("checkpoint", "#c6b2a2"), ("weight_sync", BLUE)):
        begun = by("stage", "max", of_role(performance.STAGE_START, stage=stage))
        title = stage.replace("_", " ").capitalize()
        made.annotation(title, color, f"{begun} * 1000", enable=False, at_value=True)


def lane_variable() -> Any:
    return listed("lane", "Rank in detail", f"label_values({of_role(per_rank.RANK_UP)}, rank)")


def step_now() -> Any:
    seconds = recent(of_role(performance.RANK_STEP_SECONDS))
    panel = trend(
        "Step time",
        "Wall time of the last closed step, of the slowest rank. Steady is normal; when it has "
        "grown, the panels below say which stage grew.",
        "s",
    )
    return panel.with_target(query(by("role", "max", seconds))).decimals(2)


def bubble_now() -> Any:
    panel = trend(
        "Bubble",
        "Share of rank time in which nothing was computed: waiting or idle. Synchronous training "
        "of equal ranks stays below 20 %. When it is high, see below which ranks wait.",
        "percentunit",
    )
    return panel.with_target(query(by("role", "max", recent(of_role(performance.BUBBLE_RATIO)))))


def timeline() -> Any:
    panel = states(
        "Stages of each rank",
        "A bar of one colour is a stage; a rank with a longer bar than the ranks above and below "
        "it is late. Idle is dark; waiting inside a stage has the stage's colour (see the shares "
        f"below). Only the last four repeats within a step are shown. {NEED_INTERVAL}",
        [stage_map()],
    )
    stamps = as_table(query(f"({when_new(of_ranks(performance.STAGE_START))}) * 1000"))
    panel.with_target(stamps).max_data_points(300)
    return panel.display_name("rank ${__field.labels.rank}").transformations(
        [*exact_rows("rank", "stage"), *rows_for("rank")]
    )


def lanes() -> Any:
    begin = when_new(of_role(performance.STAGE_START, rank="$lane"))
    end = when_new(of_role(performance.STAGE_END, rank="$lane"))
    both = (
        f'label_replace({begin}, "state", "$1", "stage", "(.*)")'
        f' or label_replace({end}, "state", "off", "", "")'
    )
    panel = states(
        "Rank $lane in detail: a lane for each stage",
        "Where a lane is empty the stage is not running: stages inside each other and stages that "
        f"overlap keep their own lanes. {NEED_INTERVAL}",
        [stage_map(), values(("off", " ", CLEAR))],
    )
    panel.with_target(as_table(query(f"({both}) * 1000"))).max_data_points(300)
    return panel.display_name("${__field.labels.stage}").transformations(
        [*exact_rows("stage", "state"), *rows_for("stage")]
    )


def exactness() -> Any:
    """Whether a step has enough samples; a scrape or a query step may be the longer one."""
    num_scrapes = f"max(count_over_time({of_role(per_rank.RANK_UP)}[{SCRAPES}]))"
    scrape = f"$__rate_interval_ms / 1000 / {num_scrapes}"
    step = f"min({recent(of_role(performance.RANK_STEP_SECONDS))})"
    panel = tiles(
        "Samples per step",
        "How often a step is sampled: its length / the longer of the scrape interval and the query "
        "step. From 2 on the timeline is exact. Below 2 some stages are missing: shorten the "
        "range, or scrape more often (scrape_interval in prometheus.yml).",
        "none",
    )
    panel.with_target(instant(f"{step} / clamp_min({scrape}, $__interval_ms / 1000)", "samples"))
    panel.text_mode(cm.BigValueTextMode.VALUE).max_data_points(300).decimals(1)
    panel.mappings([
        dm.RangeMap(options=dm.DashboardRangeMapOptions(
            from_val=None, to=EXACT_SAMPLES, result=dm.ValueMappingResult(
                text="steps too short: stages are missing", color=ORANGE, index=0)))
    ])  # fmt: skip
    panel.text(common.VizTextDisplayOptions().value_size(20))
    return panel.color_scheme(by_threshold()).thresholds(limits(ORANGE, (EXACT_SAMPLES, TEAL)))


def when_new(stamps: str) -> str:
    """Stamps of the last four query steps, and all at the left edge; else 8 ranks need 50,000 rows.

    The latest stamp is visible at most one scrape and one step after the event; four steps
    tolerate two failed scrapes.
    """
    seconds = "$__interval_ms / 1000"
    at_left_edge = f"(vector(time()) < $__from / 1000 + 2 * {seconds})"
    return f"{stamps} > time() - 4 * {seconds} or {stamps} and on () {at_left_edge}"


def stage_map() -> dm.ValueMap:
    return values(
        *((stage, stage, color) for stage, color in STAGES.items()), ("idle", "idle", IDLE)
    )


def exact_rows(*keys: str) -> list[dm.DataTransformerConfig]:
    """Samples of stamps -> one row for each distinct stamp; the last key is what is drawn."""
    numbers = [{"targetField": "start", "destinationType": "time"}]
    if "rank" in keys:  # as text, rank 10 comes before rank 2
        numbers.append({"targetField": "rank", "destinationType": "number"})
    grouped = {name: {"operation": "groupby", "aggregations": []} for name in ("start", *keys)}
    unused = ("Time", "__name__", "instance", "job", "run", "role", "slot")
    return [
        transform(
            "organize", excludeByName=dict.fromkeys(unused, True), indexByName={},
            renameByName={"Value": "start"},
        ),
        transform("convertFieldType", fields={}, conversions=numbers),
        transform("groupBy", fields=grouped),
    ]  # fmt: skip


def rows_for(field: str) -> list[dm.DataTransformerConfig]:
    """A row for each value of the field, in its order, each in the order of time."""
    return [
        transform("sortBy", fields={}, sort=[{"field": field}]),
        transform("partitionByValues", fields=[field], keepFields=False, naming={"asLabels": True}),
        transform("sortBy", fields={}, sort=[{"field": "start"}]),
    ]


def step_split() -> Any:
    stages = by("stage", "avg", of_role(performance.RANK_STAGE_SECONDS))
    wall = by("role", "avg", of_role(performance.RANK_STEP_SECONDS))
    active = f"avg by (role) ({by('role, rank', 'sum', of_role(performance.RANK_STAGE_SECONDS))})"
    panel = stacked(
        "A step, by stage (mean of the ranks)",
        "Height is the step time; grey is waiting and idle. The colour that grew from left to "
        "right is where the time went.",
        "s",
        is_bars=True,
    )
    panel.with_target(query(stages, "{{stage}}"))
    panel.with_target(query(f"clamp_min({wall} - {active}, 0)", "waiting and idle", "B"))
    return paint(panel, {**STAGES, "waiting and idle": GREY})


def time_shares() -> Any:
    wall = f"scalar(sum({rate(of_role(per_rank.WALL_SECONDS))}))"
    stages = by("stage", "sum", rate(of_role(per_rank.STAGE_ACTIVE_SECONDS)))
    waits = by("kind", "sum", rate(of_role(per_rank.WAIT_SECONDS)))
    idle = by("role", "sum", rate(of_role(per_rank.IDLE_SECONDS)))
    panel = stacked(
        "Share of the ranks' time",
        "All shares add up to 100 % (more where stages overlap). Waiting above 20 % is expensive: "
        "'Each rank' below shows the cause.",
        "percentunit",
    ).max(1)
    panel.with_target(query(f"{stages} / {wall}", "{{stage}}"))
    panel.with_target(query(f"{waits} / {wall}", "wait: {{kind}}", "B"))
    panel.with_target(query(f"{idle} / {wall}", "idle", "C"))
    return paint(panel, {**STAGES, **{f"wait: {k}": c for k, c in WAITS.items()}, "idle": IDLE})


def paint(panel: Any, colors: dict[str, str]) -> Any:
    for name, color in colors.items():
        panel.override_by_name(name, colored(color))
    return panel


def rank_shares() -> Any:
    wall = by("rank", "sum", rate(of_ranks(per_rank.WALL_SECONDS)))
    parts = {
        "work": by("rank", "sum", rate(of_ranks(per_rank.ACTIVE_SECONDS))),
        "waiting": by("rank", "sum", rate(of_ranks(per_rank.WAIT_SECONDS))),
        "idle": by("rank", "sum", rate(of_ranks(per_rank.IDLE_SECONDS))),
    }
    panel = rank_bars(
        "Each rank: work, waiting, idle",
        "Ranks that do the same work look the same. The rank that waits least is the one that the "
        "others wait for: open it on the rank board.",
        "percentunit",
    )
    for ref, (name, part) in zip("ABC", parts.items(), strict=True):
        panel.with_target(as_table(instant(f"{part} / {wall}", ref=ref)))
        colors = {"work": BLUE, "waiting": ORANGE, "idle": IDLE}
        panel.override_by_name(name, colored(colors[name]))
    names = {f"Value #{ref}": name for ref, name in zip("ABC", parts, strict=True)}
    return panel.transformations([*joined_by_rank(names)])


def learner_split() -> Any:
    panel = stacked(
        "Off-policy learner: its last iteration",
        "Seconds, mean over ranks; no two parts have time in common. Mostly train: the learner is "
        "the bottleneck. collector_wait: the collector is late; replay_batch_wait: packing or "
        "copying is; rank_barrier, param_sync: one rank is. Empty for other jobs.",
        "s",
    )
    parts = by("part", "avg", of_run(learner_time.LEARNER_SECONDS))
    return panel.with_target(query(parts, "{{part}}"))


def collector_shares() -> Any:
    panel = stacked(
        "Off-policy collector: where its time goes",
        "Share of its time. env_step: the environment is the cost. action_select: it waits for the "
        "learner's actions, which is normal where the learner is the bottleneck. Empty for other "
        "jobs.",
        "percentunit",
    )
    seconds = rate(of_run(learner_time.COLLECTOR_SECONDS))
    parts, wall = by("part", "sum", seconds), f"scalar(sum({seconds}))"
    return panel.with_target(query(f"{parts} / {wall}", "{{part}}")).max(1)


def in_flight() -> Any:
    panel = bars(
        "In flight: what each rank is in, and since when",
        "How long the innermost open stage or wait has been open. It grows and starts again: "
        "normal. One bar far longer than usual is a rank that is stuck; 'wait' bars are those "
        "that wait for it.",
        "s",
    )
    now = by("rank, kind, stage", "max", recent(of_ranks(performance.INFLIGHT_SECONDS)))
    panel.with_target(instant(f"topk(12, {now})", "rank {{rank}}: {{kind}} {{stage}}"))
    return (
        panel.min(0).color_scheme(by_threshold()).thresholds(limits(BLUE, (60, YELLOW), (600, RED)))
    )


def step_trend() -> Any:
    seconds = by("rank", "max", of_role(performance.RANK_STEP_SECONDS))
    panel = lines(
        "Step time over ranks",
        "Fastest, median and slowest rank. In synchronous training they lie on each other; a band "
        "that opens is a rank that falls behind, a slope that all share is growing work.",
        "s",
    )
    panel.with_target(query(f"max({seconds})", "slowest"))
    panel.with_target(query(f"quantile(0.5, {seconds})", "median", "B"))
    panel.with_target(query(f"min({seconds})", "fastest", "C"))
    return paint(panel, {"slowest": RED, "median": BLUE, "fastest": TEAL}).min(0)


def tokens() -> Any:
    panel = stacked(
        "Tokens per second, all ranks",
        "Prompt and response tokens that the ranks processed. Falling response tokens with the "
        "same step time: shorter answers, see training stability.",
        "short",
    )
    return panel.with_target(
        query(by("kind", "sum", rate(of_role(per_rank.RANK_TOKENS))), "{{kind}}")
    )


def samples() -> Any:
    panel = lines(
        "Samples per second",
        "Samples of a step / its wall time: reported by the framework, else counted by the shape "
        "ledger or the model. Use this number to compare two settings. When it falls and tokens "
        "per second do not, answers became longer.",
        "short",
    )
    rates = by("node", "max", of_run(performance.SAMPLES_RATE))
    return panel.with_target(query(rates, "{{node}}")).min(0)


def bubble() -> Any:
    panel = lines(
        "Bubble over time",
        "Share of rank time without computing, of the last closed step. A rise means that the "
        "ranks drift apart or that a stage before them is starved.",
        "percentunit",
    )
    ratio = by("role", "max", of_role(performance.BUBBLE_RATIO))
    return panel.with_target(query(ratio, "bubble")).min(0).max(1)


def framework_stages() -> Any:
    panel = stacked(
        "Stages as the framework's own timer reports them",
        "The controller's view, waits included: a stage that is long here and short above is "
        "waiting. Empty when the framework reports no timers.",
        "s",
        is_bars=True,
    )
    seconds = by("stage", "max", of_run(performance.NATIVE_STAGE_SECONDS, domain=""))
    return paint(panel.with_target(query(seconds, "{{stage}}")), STAGES)


def tokens_per_gpu() -> Any:
    panel = lines(
        "Tokens per second and device, as the framework reports it",
        "Use this number to compare runs. A drop without longer answers is lost "
        "speed: see the verdict and the shares above.",
        "short",
    )
    per_gpu = by("role", "max", of_run(performance.TOKENS_PER_SECOND_PER_GPU, scope=""))
    return panel.with_target(query(per_gpu, "{{role}}")).min(0)


def queues() -> Any:
    panel = lines(
        "Queues",
        "Items that wait in each queue, all ranks together. It fills and empties: normal. Always "
        "full: the consumer is too slow; always empty: the producer is.",
        "short",
    )
    depth = by("queue", "sum", of_role(per_rank.QUEUE_DEPTH, stat=""))
    return panel.with_target(query(depth, "{{queue}}")).min(0)


def mfu() -> Any:
    panel = lines(
        "MFU by stage, and of the whole step",
        "Model FLOPs / what the device could do at its peak in that time, mean over ranks; waits "
        "inside the stage count as time. 30 to 50 % in an update is usual for large models, a few "
        "percent in a rollout. A fall at the same lengths is lost speed. Empty where the peak of "
        "the device is not known: dfx_rank_mfu_unknown says why.",
        "percentunit",
    )
    panel.with_target(query(by("stage", "avg", of_role(utilisation.MFU)), "{{stage}}"))
    panel.with_target(query(by("role", "avg", of_role(utilisation.STEP_MFU)), "whole step", "B"))
    return paint(panel, {**STAGES, "whole step": GREY}).min(0)
