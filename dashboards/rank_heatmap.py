"""Per-rank heatmap: who is slower than the others, since when, and doing what."""

from __future__ import annotations

from typing import Any

from dashboards import alert_panels, verdict_row
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
    instant,
    joined_by_rank,
    limits,
    lines,
    prop,
    query,
    rank_heatmap,
    thresholds,
    tiles,
    transform,
    values,
)
from dashboards.promql import (
    WINDOW,
    against_median,
    begin,
    by,
    of_ranks,
    of_role,
    of_run,
    rate,
    recent,
)
from dfx_agent.catalogue import collectives, memory, per_rank, performance, verdicts
from dfx_agent.catalogue.spec import Metric

# Against the median: blue is less, grey the same, yellow more. Shares: bright is much.
AGAINST = ("Cividis", False)
AGAINST_ENDS = (0.65, 1.35)
BRIGHT_IS_MUCH = ("Inferno", False)
FAR_LIMITS = limits(BLUE, (0.9, TEAL), (1.1, YELLOW), (1.2, ORANGE), (1.35, RED))
OWN_WAITS = "collective|barrier"
OF_HOST = {"method": "!device"}  # a device's are of other steps and another clock


def board() -> Board:
    made = Board(
        "dfx-ranks", "dfx: Per-rank heatmap", file="dashboards/rank_heatmap.py",
        about="Which rank differs from the others, since when, and in what.",
    )  # fmt: skip
    made.with_role().with_ranks().with_window().with_links()
    alert_panels.annotate(made)
    blamed = begin("kind, cause, rank", of_run(verdicts.VERDICT_ACTIVE))
    made.annotation("Verdict", RED, blamed, text="{{kind}}: {{cause}}, rank {{rank}}")
    made.row("Verdict: which rank, and why?")
    made.line(
        6, (4, verdict_row.verdicts()), (8, verdict_row.blamed()), (3, verdict_row.lost_seconds()),
        (3, most_work()), (3, most_tokens()), (3, ranks_up()),
    )  # fmt: skip
    made.line(6, (24, verdict_row.history()))
    made.row("Ranks that work longer than the others, and ranks that wait")
    made.line(11, (12, work_heatmap()), (12, peers_heatmap()))
    made.line(9, (8, work_bands()), (8, busiest()), (8, work_matrix()))
    made.folded("Is it the work, or the rank?")
    made.line(10, (12, tokens_heatmap()), (12, seconds_per_token_heatmap()))
    made.line(10, (12, other_waits_heatmap()), (12, idle_heatmap()))
    made.line(10, (12, transfer_heatmap()), (12, longest_rollouts()))
    made.folded("Is a rank stuck? Who has not arrived?")
    made.line(9, (12, behind()), (12, in_collective()))
    made.folded("Every rank")
    made.line(12, (24, rank_table()))
    made.folded("More: tokens of a step against those before")
    made.line(8, (24, token_ratios()))
    return made


def work_seconds() -> str:
    """Of each rank, per second: time in stages, waits taken out."""
    return by("rank", "sum", rate(of_ranks(per_rank.ACTIVE_SECONDS)))


def wall() -> str:
    return by("rank", "sum", rate(of_ranks(per_rank.WALL_SECONDS)))


def share_of_wall(part: str) -> str:
    return f"{part} / {wall()}"


def ranks_up() -> Any:
    panel = tiles(
        "Ranks alive",
        "Live processes, of all processes of the run. If some are missing, the crash verdict "
        "names them.",
        "none",
    )
    up = by("role, rank", "max", recent(of_role(per_rank.RANK_UP)))
    panel.with_target(instant(f"sum({up})", "alive"))
    panel.with_target(instant(f"count({up}) - sum({up})", "gone", "B"))
    panel.color_scheme(by_threshold()).thresholds(limits(GREY))
    return panel.override_by_name("gone", [thresholds([(None, TEAL), (1, RED)])])


def most_work() -> Any:
    panel = tiles(
        "Most work",
        "The rank that works longest, and how much longer than the median rank, over the window. "
        "Below 5 % is normal. Above: when the same rank has the most tokens, balance the batches; "
        "otherwise the rank itself is slow.",
        "percentunit",
    )
    return above_median(panel, work_seconds())


def most_tokens() -> Any:
    panel = tiles(
        "Most tokens",
        "The rank with the most tokens, and how many more than the median rank, over the window. "
        "Below 5 % is normal. Above: every step waits for this rank's batch; balance by tokens "
        "instead of by samples.",
        "percentunit",
    )
    return above_median(panel, by("rank", "sum", rate(of_ranks(per_rank.RANK_TOKENS))))


def above_median(panel: Any, expression: str) -> Any:
    """The highest rank by name, and what it has more than the median rank."""
    panel.with_target(instant(f"topk(1, {against_median(expression)} - 1)", "rank {{rank}}"))
    panel.color_scheme(by_threshold())
    return panel.thresholds(limits(TEAL, (0.05, YELLOW), (0.2, RED))).decimals(0)


def work_heatmap() -> Any:
    return rank_heatmap(
        "Work of each rank against the median",
        "Time in stages, waits taken out, divided by the median rank's. A row that stays yellow is "
        "the straggler: all others wait for it. All grey is normal.",
        "none", against_median(work_seconds()), AGAINST, AGAINST_ENDS,
    )  # fmt: skip


def peers_heatmap() -> Any:
    peers = by(
        "rank", "sum", rate(of_ranks(collectives.COLLECTIVE_SECONDS, part="peers", **OF_HOST))
    )
    return rank_heatmap(
        "Waiting for other ranks in collectives",
        "Share of time until the last rank had arrived. The dark row among bright ones is the rank "
        "that the bright ones wait for. All dark is normal.",
        "percentunit", share_of_wall(peers), BRIGHT_IS_MUCH, (0, None),
    )  # fmt: skip


def work_bands() -> Any:
    work = share_of_wall(work_seconds())
    panel = lines(
        "Working share: bands over the ranks",
        "Share of time in stages. Lines that lie on each other are normal; a gap between the "
        "longest and the median is what the others wait.",
        "percentunit",
    )
    for ref, (name, color, text) in zip(
        "ABCD",
        (
            ("longest", RED, f"max({work})"),
            ("90 %", ORANGE, f"quantile(0.9, {work})"),
            ("median", BLUE, f"quantile(0.5, {work})"),
            ("shortest", TEAL, f"min({work})"),
        ),
        strict=True,
    ):
        panel.with_target(query(text, name, ref)).override_by_name(name, colored(color))
    return panel.min(0).max(1).fill_opacity(0)


def busiest() -> Any:
    panel = bars(
        "The eight busiest ranks, against the median",
        "1 is the median. The first bar is the straggler when it stands alone; several high "
        "bars are uneven work.",
        "none",
    )
    panel.with_target(
        instant(f"sort_desc(topk(8, {against_median(work_seconds())}))", "rank {{rank}}")
    )
    panel.min(0).decimals(2)
    return panel.color_scheme(by_threshold()).thresholds(FAR_LIMITS)


def work_matrix() -> Any:
    labelled = (
        f"{against_median(work_seconds())} * on (rank) group_left (node, local_rank) "
        f"{by('rank, node, local_rank', 'max', recent(of_ranks(per_rank.RANK_INFO)))}"
    )
    panel = cells(
        "Now: node by local rank",
        "Work against the median. A red row is a node (power, cooling, network); a red column is "
        "a place in every node; a single red cell is one device or its data.",
        "none",
    )
    panel.with_target(as_table(instant(by("node, local_rank", "max", labelled))))
    panel.with_transformation(
        transform("groupingToMatrix", columnField="local_rank", rowField="node", valueField="Value")
    )
    panel.color_scheme(by_threshold()).thresholds(FAR_LIMITS).decimals(2)
    return panel.override_by_field_type(
        "number", [background(), prop("custom.align", "center"), prop("custom.minWidth", 40)]
    )


def tokens_heatmap() -> Any:
    tokens = by("rank", "sum", rate(of_ranks(per_rank.RANK_TOKENS)))
    return rank_heatmap(
        "Tokens of each rank against the median",
        "Yellow here and above: the rank has more work, balance the batches by tokens. "
        "Grey here and yellow above: the rank itself is slow.",
        "none", against_median(tokens), AGAINST, AGAINST_ENDS,
    )  # fmt: skip


def seconds_per_token_heatmap() -> Any:
    tokens = by("rank", "sum", rate(of_ranks(per_rank.RANK_TOKENS)))
    return rank_heatmap(
        "Work per token against the median",
        "Yellow is a rank that is slower at equal work: look at its device, its host's processes, "
        "its clocks. Grey is normal, also where tokens are uneven.",
        "none", against_median(f"({work_seconds()} / {tokens})"), AGAINST, AGAINST_ENDS,
    )  # fmt: skip


def other_waits_heatmap() -> Any:
    waits = by("rank", "sum", rate(of_ranks(per_rank.WAIT_SECONDS, kind=f"!~{OWN_WAITS}")))
    return rank_heatmap(
        "Waiting for data, queues, policies",
        "Share of time in waits that are no collective and no barrier. Bright is starved: see the "
        "stage that feeds these ranks. All black is normal.",
        "percentunit", share_of_wall(f"({waits} or 0 * {wall()})"), BRIGHT_IS_MUCH, (0, 0.5),
    )  # fmt: skip


def idle_heatmap() -> Any:
    idle = by("rank", "sum", rate(of_ranks(per_rank.IDLE_SECONDS)))
    return rank_heatmap(
        "Idle: nothing recorded",
        "Share of time outside every stage and wait. Black is normal. Bright in all ranks: the "
        "job does something that no stage covers; bright in one: a stalled host.",
        "percentunit", share_of_wall(idle), BRIGHT_IS_MUCH, (0, 0.5),
    )  # fmt: skip


def transfer_heatmap() -> Any:
    transfer = by(
        "rank", "sum", rate(of_ranks(collectives.COLLECTIVE_SECONDS, part="transfer", **OF_HOST))
    )
    return rank_heatmap(
        "Communication: moving the bytes",
        "Share of time in collectives after the last rank had arrived. Rows alike are normal; one "
        "bright row is a slow link or host.",
        "percentunit", share_of_wall(transfer), BRIGHT_IS_MUCH, (0, None),
    )  # fmt: skip


def longest_rollouts() -> Any:
    panel = bars(
        "Longest rollouts of the last step",
        "Rollout is where ranks differ most, because answers differ in length. Bars alike are "
        "normal; one far longer in every step: its prompts or its engine.",
        "s",
    )
    rollout = recent(of_ranks(performance.RANK_STAGE_SECONDS, stage="rollout"))
    seconds = by("rank", "max", rollout)
    panel.with_target(instant(f"sort_desc(topk(10, {seconds}))", "rank {{rank}}"))
    return panel.min(0).color_scheme(by_threshold()).thresholds(limits(BLUE))


def behind() -> Any:
    enqueued = of_ranks(collectives.GROUP_ENQUEUED)
    num_enqueued = by("rank, group", "max", recent(enqueued))
    is_stuck = by("rank, group", "max", f"changes({enqueued}[{WINDOW}]) == bool 0")
    missing = (
        f"(max by (group) ({num_enqueued}) - on (group) group_right () {num_enqueued}) * {is_stuck}"
    )
    panel = bars(
        "Collectives behind the others, without moving",
        "How many collectives that others have entered a rank has not, where it has entered none "
        "in the window. 0 is normal. A rank with a red bar did not arrive: see its stack on the "
        "agent's page.",
        "none",
    )
    ranks = by("rank", "max", missing)
    panel.with_target(instant(f"sort_desc(topk(10, {ranks}))", "rank {{rank}}"))
    return panel.min(0).color_scheme(by_threshold()).thresholds(limits(TEAL, (1, RED)))


def in_collective() -> Any:
    panel = bars(
        "Longest in a collective now",
        "How long a rank has been in one collective. Above a few seconds: these ranks wait for one "
        "that is missing here. Usually 0 or nothing.",
        "s",
    )
    now = by("rank, operation", "max", recent(of_ranks(collectives.INFLIGHT_COLLECTIVE_SECONDS)))
    up = by("role", "max", recent(of_role(per_rank.RANK_UP)))
    nothing = f'label_replace(0 * {up}, "rank", "–", "", "")'
    panel.with_target(
        instant(f"topk(10, {now}) or ({nothing} unless on () {now})", "rank {{rank}} {{operation}}")
    )
    panel.min(0).color_scheme(by_threshold())
    return panel.thresholds(limits(BLUE, (5, YELLOW), (15, RED)))


def rank_table() -> Any:
    panel = cells(
        "Every rank",
        "Sort by a column to find the odd one. Work and waiting are shares of time over the "
        "window; a rank that is down stays red.",
    )
    rates: tuple[tuple[str, str], ...] = (
        ("up", by("rank", "max", recent(of_ranks(per_rank.RANK_UP)))),
        ("step", latest_by_rank(performance.STEP)),
        ("step time", latest_by_rank(performance.RANK_STEP_SECONDS)),
        ("work", share_of_wall(work_seconds())),
        ("waiting", share_of_wall(by("rank", "sum", rate(of_ranks(per_rank.WAIT_SECONDS))))),
        ("tokens/s", by("rank", "sum", rate(of_ranks(per_rank.RANK_TOKENS)))),
        ("host memory", latest_by_rank(memory.HOST_ANONYMOUS)),
    )
    for ref, (_, text) in zip("ABCDEFG", rates, strict=True):
        panel.with_target(as_table(instant(text, ref=ref)))
    names = {f"Value #{ref}": name for ref, (name, _) in zip("ABCDEFG", rates, strict=True)}
    panel.transformations(joined_by_rank(names))
    up = values(("0", "DOWN", RED), ("1", "up", TEAL))
    panel.override_by_name("up", [background(), prop("mappings", [up])])
    for name, unit in (("step time", "s"), ("tokens/s", "short"), ("host memory", "bytes")):
        panel.override_by_name(name, [prop("unit", unit), prop("decimals", 1)])
    for name in ("work", "waiting"):
        bar = prop("custom.cellOptions", {"type": "gauge", "mode": "basic"})
        ends = [prop("min", 0), prop("max", 1), prop("unit", "percentunit")]
        color = prop("color", {"mode": "fixed", "fixedColor": BLUE if name == "work" else ORANGE})
        panel.override_by_name(name, [bar, *ends, color])
    return panel


def latest_by_rank(metric: Metric) -> str:
    return by("rank", "max", recent(of_ranks(metric)))


def token_ratios() -> Any:
    panel = lines(
        "Tokens: imbalance between ranks, and the latest steps against those before",
        "1 is normal for each. Imbalance: the rank with most tokens against the mean rank, over "
        "eight steps; above 1.5 balance by tokens. Latest and sustained: tokens of the latest step "
        "and the smaller of the latest two, against the median of the 32 before.",
        "none",
    )
    ratios = {
        "imbalance": performance.TOKEN_IMBALANCE,
        "latest step": performance.LATEST_TOKENS_RATIO,
        "sustained": performance.SUSTAINED_TOKENS_RATIO,
    }
    for ref, (name, metric) in zip("ABC", ratios.items(), strict=True):
        panel.with_target(query(by("role", "max", of_role(metric)), name, ref))
    return panel.min(0).fill_opacity(0)
