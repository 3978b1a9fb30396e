"""Training stability: is the run diverging, since when, and which signal moved first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grafana_foundation_sdk.models import common as cm

from dashboards import alert_panels, data_ledger, sample_panels
from dashboards.common import (
    BLUE,
    GREY,
    NOWHERE,
    ORANGE,
    RED,
    TEAL,
    YELLOW,
    Board,
    as_table,
    background,
    by_threshold,
    cells,
    colored,
    columns,
    instant,
    limits,
    lines,
    prop,
    query,
    rank_heatmap,
    states,
    thresholds,
    tiles,
    values,
)
from dashboards.promql import by, of_run, rate, recent
from dfx_agent.catalogue import data_quality, off_policy, signals, stability, training, verdicts
from dfx_agent.catalogue import rollout as rollout_catalogue
from dfx_agent.catalogue.alerts.declared.stability import FAMILIES
from dfx_agent.catalogue.alerts.samples import REWARD_IMPROVING
from dfx_agent.catalogue.spec import PER_RANK, Metric

BAND = "#8890a0"
NOT_REPORTED = "the job does not report it"
# percentiles have a panel of their own
_MOMENTS = "~|mean|max|min"
FAMILY_NAMES = {
    "divergence": "KL and clipping", "grad_norm": "gradient norm", "entropy": "entropy",
    "reward": "reward", "length": "length", REWARD_IMPROVING: "reward improves",
}  # fmt: skip
VOTING = "~" + "|".join(FAMILIES)


def board() -> Board:
    made = Board(
        "dfx-stability", "dfx: Training stability", file="dashboards/training_stability.py",
        about="Whether training diverges, since which step, and which signal moved first.",
    )  # fmt: skip
    made.with_window().with_links()
    active = by(
        "symptom, direction", "max", f"{of_run(signals.SYMPTOM_ACTIVE, symptom=VOTING)} == 1"
    )
    made.annotation("Symptom", ORANGE, active, text="{{symptom}} {{direction}}", enable=False)
    alert_panels.annotate(made)
    made.annotation("Diverging", RED, f"max({of_run(signals.SIGNAL_LATCHED)}) == 1")
    made.row("Verdict: is training diverging, and what moved first?")
    made.line(
        6, (3, verdict()), (7, symptoms()), (5, onsets()), (3, rollout()),
        (6, alert_panels.alerts("dfx-stability")),
    )  # fmt: skip
    made.row("The signals, each with the band of its own past")
    made.line(8, (8, reward()), (8, policy_kl()), (8, entropy()))
    made.line(8, (8, grad_norm()), (8, reference_kl()), (8, clipping()))
    made.line(7, (24, symptom_lanes()))
    made.line(8, (24, distances()))
    made.folded("Data: what the rollout delivers")
    made.line(8, (8, lengths()), (8, truncation()), (8, scores()))
    made.line(8, (8, mismatch()), (8, prompts()), (8, data_ledger.groups()))
    made.line(8, (14, data_ledger.mismatches()), (10, data_ledger.mask()))
    made.folded("Samples: distribution of scores and response lengths")
    made.line(9, (12, sample_panels.score_buckets()), (12, sample_panels.scores_by_source()))
    made.line(8, (12, sample_panels.score_spread()), (12, sample_panels.length_spread()))
    made.folded("Numbers: NaN, losses, learning rate")
    made.line(8, (6, nonfinite()), (6, skipped()), (6, losses()), (6, learning_rate()))
    made.folded("More: batches at each boundary")
    made.line(
        8, (6, data_ledger.samples()), (6, data_ledger.tokens()), (6, data_ledger.not_finite()),
        (6, data_ledger.checksums()),
    )  # fmt: skip
    return made


def of_main(metric: Metric, **where: str) -> str:
    """The series that stands for the whole batch: no single environment, subset, scope or part."""
    parts = set(metric.labels) - {*PER_RANK, *where}
    return of_run(metric, **dict.fromkeys(sorted(parts), ""), **where)


def of_mean(metric: Metric) -> str:
    """The same; frameworks say stat="mean", or nothing when they only have a mean."""
    return of_main(metric, stat="~|mean")


def of_signal(metric: Metric, *names: str) -> str:
    return of_run(metric, signal="~" + "|".join(names) if len(names) > 1 else names[0])


def _of_divergence(severity: str) -> str:
    return of_run(verdicts.INCIDENT_BEGIN, kind="divergence", severity=severity)


def verdict() -> Any:
    panel = tiles(
        "Training",
        "The state of the run, as on the agent's page. Teal: judged on recent, sufficient data, "
        "and no alert fires. One family of signals out of its range is context, two are "
        "unstable: watch. DIVERGING: save the latest checkpoint before the earliest onset and stop "
        "or roll back. OTHER PROBLEM: see the alerts. Grey: not everything could be judged yet; "
        "`dfx-agent diagnose` lists what is missing.",
        "none",
    )
    moved = [
        f"0 * {by('run', 'max', recent(_of_divergence(severity)))} + {value}"
        for severity, value in (("critical", 3), ("warning", 2), ("info", 1))
    ]
    others = [
        f"0 * {by('run', 'max', recent(of_run(verdicts.RUN_STATE, state=state)))} + {value}"
        for state, value in (
            ("found", 4), ("warning", 4), ("insufficient evidence", -1), ("clear", 0),
        )
    ]  # fmt: skip
    text = " or on (run) ".join([*moved, *others])
    panel.with_target(instant(text, "training"))
    panel.mappings([
        values(("-1", "not enough evidence", GREY), ("0", "steady", TEAL),
               ("1", "one signal moved", YELLOW), ("2", "UNSTABLE", ORANGE),
               ("3", "DIVERGING", RED), ("4", "OTHER PROBLEM", ORANGE)),
    ])  # fmt: skip
    panel.text_mode(cm.BigValueTextMode.VALUE)
    return panel.color_scheme(by_threshold()).thresholds(limits(GREY))


def symptoms() -> Any:
    panel = tiles(
        "Symptoms",
        "One tile for each family of signals: red has left its range within the last 10 steps. "
        "'reward improves' is good news and vetoes the vote when it is teal.",
        "none",
    )
    active = by("symptom", "max", recent(of_run(signals.SYMPTOM_ACTIVE)))
    panel.with_target(instant(active, "{{symptom}}"))
    panel.mappings([values(("0", "calm", TEAL), ("1", "MOVED", RED))])
    veto = prop("mappings", [values(("0", "no", GREY), ("1", "yes", TEAL))])
    for name, text in FAMILY_NAMES.items():
        shown = [prop("displayName", text), *([veto] if name == REWARD_IMPROVING else [])]
        panel.override_by_name(name, shown)
    return panel.color_scheme(by_threshold()).thresholds(limits(GREY))


def onsets() -> Any:
    panel = cells(
        "What moved first",
        "The step at which each active symptom began, earliest on top: it names the cause more "
        "often than the loudest. Read samples of that step and of one before. "
        "'nothing moved' is normal.",
    )
    found = by("symptom, direction", "min", recent(of_run(signals.SYMPTOM_ONSET)))
    ready = by("run", "count", recent(of_run(signals.BASELINE_READY)))
    nothing = f'label_replace(0 * {ready} - 1, "symptom", "nothing moved", "", "")'
    panel.with_target(as_table(instant(f"sort({found}) or ({nothing} unless on () {found})")))
    panel.with_transformation(
        columns({"symptom": "Symptom", "direction": "Way", "Value": "Since step"}, "run")
    )
    panel.override_by_name("Symptom", [
        background(),
        prop("mappings", [values(("nothing moved", "nothing moved", TEAL),
                                 *((name, FAMILY_NAMES[name], RED) for name in FAMILIES))]),
    ])  # fmt: skip
    panel.override_by_name("Way", [prop("custom.width", 55)])
    return panel.override_by_name(
        "Since step",
        [
            prop("mappings", [values(("-1", "–", GREY))]),
            prop("decimals", 0),
            prop("custom.width", 100),
            prop("custom.align", "left"),
        ],
    )


def aborted() -> str:
    """Whatever the reason; of the whole step, not of one environment's few samples."""
    return of_main(data_quality.ABORTED_RATIO, stat="~|mean", why="~.*")


def truncated() -> str:
    return of_mean(data_quality.RESPONSE_CLIP_RATIO)


def rollout() -> Any:
    panel = tiles(
        "Responses",
        "Share of responses that the rollout gave up, and that were cut at the longest length. "
        "Aborted above 5 %: read the rollout engine's log. Truncated above 30 %: the reward "
        "starves, see lengths below.",
        "percentunit",
    )
    for ref, name, selector in (("A", "aborted", aborted()), ("B", "truncated", truncated())):
        panel.with_target(instant(by("run", "max", recent(selector)), name, ref))
    colors = [(None, GREY), (0, TEAL), (0.05, ORANGE), (0.15, RED)]
    panel.override_by_name("aborted", [thresholds(colors)])
    steps = limits(GREY, (0, TEAL), (0.3, ORANGE), (0.9, RED))
    panel.no_value(NOT_REPORTED)
    return panel.color_scheme(by_threshold()).thresholds(steps).decimals(0)


def banded(title: str, about: str, unit: str, signal: str, shown: Mapping[str, str]) -> Any:
    """``shown``: legend -> PromQL; the band is where |z| <= 2."""
    panel = lines(title, about, unit)
    low = by("signal", "max", of_signal(signals.BASELINE_LOW, signal))
    high = by("signal", "max", of_signal(signals.BASELINE_HIGH, signal))
    panel.with_target(query(high, "usual range", "H")).with_target(query(low, "usual, low", "L"))
    for ref, (name, text) in zip("ABCDEF", shown.items(), strict=False):
        panel.with_target(query(text, name, ref))
    hidden = prop("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False})
    edge = [prop("custom.lineWidth", 0), prop("custom.fillOpacity", 0), *colored(BAND)]
    panel.override_by_name("usual, low", [*edge, hidden])
    panel.override_by_name(
        "usual range",
        [*edge, prop("custom.fillBelowTo", "usual, low"), prop("custom.fillOpacity", 25)],
    )
    return panel.line_width(2).fill_opacity(0).no_value(NOT_REPORTED)


def reward() -> Any:
    panel = banded(
        "Reward",
        "Mean over the step's samples, with the best and worst. It rises or stays in the grey band "
        "of its own past. Falling below it while other signals move is a collapse.",
        "none",
        "reward",
        {"mean": by("stat", "max", of_main(stability.REWARD, stat="mean"))},
    )
    for ref, stat in (("M", "max"), ("N", "min")):
        panel.with_target(query(by("stat", "max", of_main(stability.REWARD, stat=stat)), stat, ref))
        panel.override_by_name(stat, [*colored(GREY), prop("custom.lineWidth", 1)])
    return panel.override_by_name("mean", colored(TEAL))


def policy_kl() -> Any:
    return banded(
        "KL of the update (policy, old to new)",
        "How far one step moves the policy. In the band is normal; a jump out of it is a step that "
        "was too large: learning rate, clip range, or a bad batch.",
        "none",
        "policy_kl",
        {"k1": by("run", "max", of_main(stability.POLICY_KL))},
    ).override_by_name("k1", colored(ORANGE))


def entropy() -> Any:
    return banded(
        "Entropy",
        "Falls slowly in healthy training. A drop to near 0: the policy says one thing only; a "
        "rise without end: it says anything. Both end in collapse.",
        "none",
        "entropy",
        {"entropy": by("run", "max", of_mean(stability.ACTOR_ENTROPY))},
    ).override_by_name("entropy", colored(BLUE))


def grad_norm() -> Any:
    return banded(
        "Gradient norm before clipping",
        "Within its band with single spikes is normal. Rising with KL and entropy: diverging. NaN "
        "leaves a gap here and a count below.",
        "none",
        "grad_norm",
        {
            "actor": by("run", "max", of_main(stability.ACTOR_GRAD_NORM)),
            "measured {{model}}": by("model", "max", of_run(training.GRAD_NORM)),
        },
    ).override_by_name("actor", colored(RED))


def reference_kl() -> Any:
    return banded(
        "KL to the reference policy",
        "Grows slowly. A bend upwards with a falling reward: the policy has left the region in "
        "which the reward means anything; raise its coefficient or roll back.",
        "none",
        "ref_kl",
        {"loss": by("run", "max", of_main(stability.REF_KL))},
    ).override_by_name("loss", colored("#b07fd8"))


def clipping() -> Any:
    return banded(
        "Clipped tokens",
        "Share of tokens whose policy ratio was clipped. Usually below 20 %; near 1 the update is "
        "clipping itself to death: lower the learning rate.",
        "percentunit",
        "clip_fraction",
        {"clipped": by("run", "max", of_mean(stability.CLIP_FRACTION))},
    ).override_by_name("clipped", colored(YELLOW))


def symptom_lanes() -> Any:
    panel = states(
        "Symptoms over time",
        "When each family had left its range (red). Several lanes red at the same time are a "
        "collapse; the first to turn red is the place to look.",
        [values(("0", "calm", TEAL), ("1", "moved", RED))],
    )
    active = of_run(signals.SYMPTOM_ACTIVE, symptom=VOTING)
    panel.with_target(query(by("symptom, direction", "max", active), "{{symptom}} {{direction}}"))
    return panel.max_data_points(300)


def distances() -> Any:
    is_scored = by("signal", "max", of_run(signals.BASELINE_READY))
    return rank_heatmap(
        "How far each signal is from its own past",
        "Distance in robust standard deviations, up or down. Black to purple is normal (below 2), "
        "bright is not. A column bright from top to bottom is a collapse.",
        "none",
        f"abs({by('signal', 'max', of_run(signals.SIGNAL_Z))}) or {is_scored} * 0 - {NOWHERE:.0f}",
        ("Inferno", False),
        (0, 8),
        label="signal",
    )


def lengths() -> Any:
    panel = banded(
        "Response length",
        "Mean length against the band of its own past, with the longest. Growing slowly may be "
        "reasoning; a jump to the limit is chatter, to near 0 a broken rollout.",
        "none",
        "response_length",
        {"mean": by("stat", "max", of_main(data_quality.RESPONSE_LENGTH, stat="mean"))},
    )
    longest = by("stat", "max", of_main(data_quality.RESPONSE_LENGTH, stat="max"))
    panel.with_target(query(longest, "longest", "M"))
    panel.override_by_name("longest", [*colored(GREY), prop("custom.lineWidth", 1)])
    return panel.override_by_name("mean", colored(BLUE)).min(0)


def truncation() -> Any:
    panel = lines(
        "Truncated and aborted responses",
        "Share of responses cut at the longest length, given up by the rollout, and of requests "
        "that timed out. Above 30 % truncated the reward starves; aborted or timed out above a few "
        "percent: see the rollout engine's log.",
        "percentunit",
    )
    panel.with_target(query(by("run", "max", truncated()), "truncated"))
    panel.with_target(query(by("run", "max", aborted()), "aborted", "B"))
    panel.override_by_name("truncated", colored(ORANGE)).override_by_name("aborted", colored(RED))
    timed_out = by("run", "max", of_run(rollout_catalogue.TIMEOUT_RATIO))
    panel.with_target(query(timed_out, "timed out", "C"))
    return panel.min(0).max(1).fill_opacity(20)


def scores() -> Any:
    panel = lines(
        "Score and advantage",
        "Score before any KL penalty, and the spread of the advantages. Advantages that shrink to "
        "0 leave nothing to learn from.",
        "none",
    )
    panel.with_target(
        query(by("stat", "max", of_main(stability.SCORE, stat=_MOMENTS)), "score {{stat}}")
    )
    return panel.with_target(
        query(
            by("stat", "max", of_main(stability.ADVANTAGE, stat="~.*")), "advantage {{stat}}", "B"
        )
    )


def mismatch() -> Any:
    panel = lines(
        "Rollout engine against trainer",
        "How differently the two compute the same probabilities. Stays near 0; a step upwards is "
        "stale weights or another precision. Empty when the framework does not compare them.",
        "none",
    )
    panel.with_target(query(by("run", "max", of_run(off_policy.MISMATCH_KL_K1)), "KL k1"))
    return panel.with_target(
        query(by("run", "max", of_mean(off_policy.MISMATCH_KL_K3)), "KL k3", "B")
    )


def prompts() -> Any:
    panel = lines(
        "Prompt length and turns",
        "What goes in. A jump is another data set or another template: expect every signal of that "
        "step to move with it.",
        "none",
    )
    panel.with_target(
        query(by("stat", "max", of_main(data_quality.PROMPT_LENGTH, stat="~.*")), "prompt {{stat}}")
    )
    return panel.with_target(
        query(by("stat", "max", of_main(data_quality.TURNS, stat="~.*")), "turns {{stat}}", "B")
    )


def nonfinite() -> Any:
    panel = lines(
        "Steps with NaN or Inf, or nothing to learn",
        "NaN or Inf: how many of the latest 5 steps had one, by place. Any value but 0: stop, and "
        "check the step before; only 'grad' with skipped updates is a gradient scaler at work. "
        "One score: steps in a row in which all samples had the same score. If it grows, the task "
        "is too hard or solved, or the reward function is broken.",
        "none",
    )
    panel.with_target(
        query(by("where", "max", of_run(signals.NONFINITE_STEPS)), "NaN or Inf: {{where}}")
    )
    identical = by("run", "max", of_run(signals.IDENTICAL_SCORE_STEPS))
    return panel.with_target(query(identical, "one score", "B")).min(0)


def skipped() -> Any:
    panel = lines(
        "Updates per second, skipped and broken",
        "Normal: optimizer steps continue; skipped updates and non-finite gradients stay at 0. A "
        "few skips after the start are a gradient scaler that finds its scale.",
        "none",
    )
    for ref, name, metric in (
        ("A", "optimizer steps", training.OPTIMIZER_STEPS),
        ("B", "skipped updates", training.SKIPPED_UPDATES),
        ("C", "gradients not finite", training.NONFINITE_GRADIENTS),
    ):
        panel.with_target(query(f"max({by('role, rank', 'sum', rate(of_run(metric)))})", name, ref))
    return panel.min(0)


def losses() -> Any:
    panel = lines(
        "Losses",
        "Of the actor by term, and of the critic where there is one. The actor's loss says little "
        "by its size; jumps matter.",
        "none",
    )
    panel.with_target(
        query(
            by("term", "max", of_main(stability.ACTOR_LOSS, stat="~|mean", term="~.*")),
            "actor {{term}}",
        )
    )
    return panel.with_target(query(by("run", "max", of_main(stability.CRITIC_LOSS)), "critic", "B"))


def learning_rate() -> Any:
    panel = lines(
        "Learning rate",
        "As scheduled is normal. A jump here at the onset of the symptoms is the cause.",
        "none",
    )
    return panel.with_target(
        query(
            by("model", "max", of_main(stability.LEARNING_RATE, model="~.*", group="~.*")),
            "{{model}}",
        )
    ).min(0)
