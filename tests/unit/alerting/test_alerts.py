"""Conditions, the catalogue of alerts, and what one run makes of it."""

from dataclasses import dataclass, replace

import pytest

from dfx_agent.alerting.evaluator import Conditions, Evaluator
from dfx_agent.catalogue import performance, signals, verdicts
from dfx_agent.catalogue.alerts.conditions import (
    Agree,
    Compare,
    Either,
    Every,
    Grows,
    Samples,
    Unless,
    series,
)
from dfx_agent.catalogue.alerts.declared import ALERTS
from dfx_agent.catalogue.alerts.declared.pipeline import EVENT_LOOP_LATE
from dfx_agent.catalogue.alerts.prometheus import Links, rule_files
from dfx_agent.catalogue.alerts.samples import samples_of
from dfx_agent.catalogue.spec import by_name, metrics_of
from dfx_agent.commands.backtest.episodes import EPISODE_GAP_ROWS, episodes
from dfx_agent.snapshot import CollapseRow, SignalRow, SignalState, SymptomRow

FAMILIES = ("divergence", "grad_norm", "entropy", "reward", "length")


def a_signal(name: str, **values) -> SignalRow:
    row = SignalRow(name, name, 1.0, 0.0, 0.0, 0.0, 0.5, 2.0, True, None, None, None)  # noqa: FBT003
    return replace(row, **values)


def a_state(row: int = 50, *active: str, improving: bool | None = False, **values) -> SignalState:
    symptoms = tuple(
        SymptomRow(name, "down", name in active, row - 3 if name in active else None)
        for name in FAMILIES
    )
    state = SignalState(
        row=row, step=row + 1000, signals=(), symptoms=symptoms, is_reward_improving=improving,
        is_latched=False, latched_step=None, num_nonfinite_steps={}, num_identical_score_steps=None,
        had_score_signal=False, collapses=(CollapseRow("blow_up", "loss", 1, row),),
    )  # fmt: skip
    return replace(state, **values)


def firing(state: SignalState) -> dict[tuple[str, str], bool]:
    """(alert, severity) -> whether it would be delivered."""
    found = Evaluator().observe(state)
    return {(f.alert.name, f.alert.severity): not f.is_inhibited for f in found}


def delivered(state: SignalState) -> set[tuple[str, str]]:
    return {key for key, is_delivered in firing(state).items() if is_delivered}


# -------------------------------------------------------------------------------------- conditions

CUSUM = signals.SIGNAL_CUSUM
SAMPLES = {
    "dfx_signal_cusum": [
        ({"signal": "a", "direction": "up"}, 3.0),
        ({"signal": "a", "direction": "down"}, 0.0),
        ({"signal": "b", "direction": "up"}, 1.0),
    ]
}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Compare(series(CUSUM), ">", 2), True),
        (Compare(series(CUSUM), ">", 3), False),
        (Compare(series(CUSUM), ">=", 3), True),
        (Compare(series(CUSUM, signal="b"), ">", 2), False),
        (Compare(series(CUSUM, signal=("b", "a"), direction="up"), "==", 3), True),
        (Compare(series(CUSUM), "<", 1), True),
        (Compare(series(CUSUM, direction="up"), "<", 1), False),
        (Compare(series(CUSUM, direction="up"), "<=", 1), True),
        (Compare(series(CUSUM, signal="absent"), "<", 1), False),
        (Compare(series(signals.SIGNAL_Z), "<", 1), False),
        (Agree(series(CUSUM), "signal", 2), True),
        (Agree(series(CUSUM, direction="down"), "signal", 1), False),
        (Every((Compare(series(CUSUM), ">", 2), Compare(series(CUSUM), ">", 3))), False),
        (Either((Compare(series(CUSUM), ">", 2), Compare(series(CUSUM), ">", 3))), True),
        (Unless(Compare(series(CUSUM), ">", 2), Compare(series(CUSUM), ">", 3)), True),
        (Unless(Compare(series(CUSUM), ">", 2), Compare(series(CUSUM), ">", 2)), False),
    ],
)
def test_a_condition_reads_one_run_s_samples_as_promql_would(condition, holds):
    assert condition.holds(SAMPLES) is holds


def test_a_condition_is_evaluated_where_a_series_that_it_reads_has_changed():
    """Lists that are filled again in place are a change too."""
    rows = [({"signal": "a", "direction": "up"}, 3.0)]
    both = Every((Compare(series(CUSUM), ">", 2), Grows(series(CUSUM), 900)))
    conditions = Conditions([Compare(series(CUSUM), ">", 2), both])
    growth = "increase(dfx_signal_cusum[900s])"
    assert set(conditions.holding({"dfx_signal_cusum": rows})) == {0}
    assert set(conditions.holding({"dfx_signal_cusum": rows, growth: [({}, 1.0)]})) == {0, 1}
    rows[0] = ({"signal": "a", "direction": "up"}, 1.0)
    assert not conditions.holding({"dfx_signal_cusum": rows, growth: [({}, 1.0)]})


def test_a_condition_is_evaluated_only_where_a_series_that_it_reads_has_changed():
    num_evaluations = 0

    @dataclass(frozen=True)
    class Counted(Compare):
        def holds(self, samples: Samples) -> bool:
            nonlocal num_evaluations
            num_evaluations += 1
            return super().holds(samples)

    conditions = Conditions([Counted(series(CUSUM), ">", 2)])
    for value in (3.0, 3.0, 4.0):
        rows = [({"signal": "a", "direction": "up"}, value)]
        assert conditions.holding({"dfx_signal_cusum": rows, "other": [({}, value)]}) == {0}
    assert num_evaluations == 2


def test_a_label_the_metric_does_not_have_is_refused():
    with pytest.raises(ValueError, match="dfx_signal_z has no label symptom"):
        series(signals.SIGNAL_Z, symptom="reward")


def test_samples_have_exactly_the_labels_of_the_catalogue_without_run_and_node():
    state = a_state(
        50, *FAMILIES, num_identical_score_steps=1, num_nonfinite_steps={"grad": 1},
        aborted_recent_median=0.0,
        aborted_rise=0.0,
        timeout_rise=0.01,
        signals=(a_signal("entropy", recent_median=1.0, drift_ratio=1.0, drift_difference=1.0),),
    )  # fmt: skip
    samples = samples_of(state)
    about_detector = {signals.LATE_SIGNALS, signals.DETECTOR, signals.SIGNAL_PARAMETERS}
    assert set(samples) == {m.sample_name for m in metrics_of(signals) if m not in about_detector}
    for name, rows in samples.items():
        expected = set(by_name()[name].labels) - {"run", "node"}
        assert all(set(labels) == expected for labels, _ in rows)


def test_what_is_not_known_has_no_sample():
    state = a_state(improving=None, symptoms=(), signals=(a_signal("reward", z=None, value=None),))
    samples = samples_of(state)
    assert not {"dfx_signal_z", "dfx_signal_value", "dfx_symptom_active"} & set(samples)
    assert "dfx_identical_score_steps" not in samples


# --------------------------------------------------------------------------------------- catalogue

DIVERGENCE = ("DfxTrainingDivergence", "critical")
UNSTABLE = ("DfxTrainingUnstable", "warning")


@pytest.mark.parametrize(
    ("active", "improving", "expected"),
    [
        ((), False, set()),
        (("entropy",), False, {("DfxSymptomEntropy", "info")}),
        (("reward",), False, {("DfxSymptomReward", "info")}),
        (("entropy", "length"), False, {UNSTABLE}),
        (("entropy", "length", "grad_norm"), False, {DIVERGENCE}),
        (("entropy", "length", "grad_norm"), None, {DIVERGENCE}),
        (("entropy", "length", "grad_norm"), True, {UNSTABLE}),
        (("entropy", "divergence", "grad_norm"), False, {DIVERGENCE}),
        (("entropy", "divergence", "grad_norm"), True, {UNSTABLE}),
        (("reward", "length"), False, {DIVERGENCE}),
        (("reward", "length"), True, {DIVERGENCE}),
    ],
)
def test_the_vote(active, improving, expected):
    assert delivered(a_state(50, *active, improving=improving)) == expected


def test_the_classic_rule_is_shown_but_only_the_vote_is_delivered():
    found = firing(a_state(50, "entropy", "divergence", "grad_norm"))
    assert found["DfxTrainingDivergenceClassic", "critical"] is False
    assert found[DIVERGENCE] is True


def truncation(median: float, difference: float) -> tuple[SignalRow, ...]:
    return (a_signal("truncation", recent_median=median, drift_difference=difference),)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"signals": (a_signal("entropy", drift_ratio=5.1),)}, ("DfxEntropyDrift", "warning")),
        ({"signals": (a_signal("entropy", drift_ratio=4.9),)}, None),
        ({"signals": (a_signal("grad_norm", drift_ratio=9.0),)}, None),
        ({"signals": (a_signal("response_length", drift_ratio=2.1),)},
         ("DfxLengthDrift", "warning")),
        ({"signals": (a_signal("response_length", drift_ratio=1.9),)}, None),
        ({"signals": (a_signal("ref_kl", drift_ratio=20.5),)}, ("DfxReferenceKlDrift", "warning")),
        ({"signals": (a_signal("ref_kl", drift_ratio=19.5),)}, None),
        ({"signals": (a_signal("policy_kl", drift_ratio=99.0),)}, None),
        ({"signals": truncation(0.31, 0.21)}, ("DfxRolloutDegraded", "warning")),
        ({"signals": truncation(0.29, 0.21)}, ("DfxTruncationRises", "info")),
        ({"signals": truncation(0.29, 0.19)}, None),
        ({"aborted_rise": 0.06}, ("DfxRolloutAbortsRise", "info")),
        ({"aborted_rise": 0.04}, None),
        ({"timeout_rise": 0.021}, ("DfxRolloutTimeoutsRise", "info")),
        ({"timeout_rise": 0.019}, None),
        ({"signals": truncation(0.90, 0.19)}, None),
        ({"num_identical_score_steps": 8}, ("DfxNoLearningSignal", "warning")),
        ({"num_identical_score_steps": 8, "had_score_signal": True},
         ("DfxNoLearningSignal", "critical")),
        ({"num_identical_score_steps": 7, "had_score_signal": True}, None),
        ({"num_nonfinite_steps": {"grad": 1, "loss": 0}}, ("DfxNonFinite", "warning")),
        ({"num_nonfinite_steps": {"grad": 2, "loss": 0}}, ("DfxNonFinite", "critical")),
        ({"num_nonfinite_steps": {"grad": 0, "loss": 1}}, ("DfxNonFinite", "critical")),
        ({"num_nonfinite_steps": {"grad": 0, "reward": 1}}, ("DfxNonFinite", "critical")),
        ({"num_nonfinite_steps": {"grad": 0, "logprob": 1}}, ("DfxNonFinite", "critical")),
        ({"num_nonfinite_steps": {"length": 5}}, None),
    ],
)  # fmt: skip
def test_an_alert_fires_on_its_side_of_the_threshold_only(values, expected):
    assert delivered(a_state(**values)) == ({expected} if expected else set())


def test_truncation_of_everything_with_a_fallen_reward_is_critical():
    state = a_state(50, "reward", signals=truncation(0.95, 0.9))
    assert ("DfxRolloutDegraded", "critical") in delivered(state)
    assert ("DfxRolloutDegraded", "critical") not in delivered(replace(state, symptoms=()))


def test_the_catalogue_is_consistent():
    names = {alert.name for alert in ALERTS}
    assert len({(alert.name, alert.severity) for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert alert.name.startswith("Dfx")
        assert set(alert.inhibits) <= names - {alert.name}
        texts = vars(alert.runbook).values()
        assert all(text.endswith((".", "?")) for text in texts)
        assert not alert.summary.endswith(".")


# ---------------------------------------------------------------------------- evaluator, episodes


def test_an_alert_stays_for_its_time_with_its_begin():
    evaluator = Evaluator()
    broken = a_state(60, num_nonfinite_steps={"loss": 1})
    assert evaluator.observe(broken)[0].since_step == 1060
    for row in range(61, 71):
        (found,) = evaluator.observe(a_state(row, num_nonfinite_steps={"loss": 0}))
        assert (found.since_step, found.alert.name) == (1060, "DfxNonFinite")
    assert evaluator.observe(a_state(71)) == []


def test_no_alert_outlasts_its_run_except_those_that_say_how_it_ended():
    """Before, what fired at the end of a run did so for the half hour that it was shown."""
    evaluator = Evaluator()
    broken = a_state(60, num_nonfinite_steps={"loss": 1})
    died = {"role": "trainer", "kind": "crash", "cause": "signal 9", "stage": "", "rank": "1"}
    crash = {verdicts.VERDICT_ACTIVE.sample_name: [(died, 1.0)]}
    live = {performance.RUN_LIVE.sample_name: [({"node": "a"}, 1.0)]}
    ended = {performance.RUN_LIVE.sample_name: [({"node": "a"}, 0.0)]}

    def names(more: Samples) -> set[str]:
        found = evaluator.observe(broken, {**samples_of(broken), **crash, **more})
        return {firing.alert.name for firing in found}

    assert names(live) == {"DfxNonFinite", "DfxRankDied"}
    assert names(ended) == {"DfxRankDied"}


def test_firings_close_to_each_other_are_one_episode():
    for gap, expected in ((EPISODE_GAP_ROWS - 1, 1), (EPISODE_GAP_ROWS, 2)):
        rows = (30, 31, 31 + gap)
        found = episodes(a_state(row, "reward", "length") for row in rows)
        assert [(e.alert, e.severity) for e in found] == [DIVERGENCE] * expected
        assert (found[0].row, found[0].step) == (30, 1030)
        assert found[0].symptoms == {"reward": 27, "length": 27}


def test_a_warning_that_becomes_a_page_is_both_and_its_singles_are_quiet():
    states = [a_state(30, "entropy"), a_state(31, "entropy", "length"),
              a_state(32, "entropy", "length", "reward"), a_state(33, "entropy", "length"),
              a_state(34, "length")]  # fmt: skip
    found = [(e.alert, e.row) for e in episodes(states)]
    assert found == [
        ("DfxSymptomEntropy", 30),
        ("DfxTrainingUnstable", 31),
        ("DfxTrainingDivergence", 32),
        ("DfxSymptomLength", 34),
    ]


def test_an_event_loop_alert_names_the_three_that_held_it_longest_and_so_does_its_rule():
    held = {"send": 0.1, "pack": 42.0, "tokenize": 1.5, "idle": 0.0, "log": 0.4}
    name = EVENT_LOOP_LATE.listing.series.sample_name
    samples = {name: [({"holder": h, "role": "orchestrator"}, held[h]) for h in held]}
    lines = EVENT_LOOP_LATE.listing.lines(samples)
    longest = ("42.0 s by pack", "1.5 s by tokenize", "0.4 s by log")
    assert lines == [f"held for {line}" for line in longest]
    (rules,) = rule_files((EVENT_LOOP_LATE,), Links()).values()
    assert f"topk(3, {name}" in rules
