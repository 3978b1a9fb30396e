"""Cases of the alerts on training health; figures lie close to the thresholds, on both sides."""

from alert_rules.cases.case import Cases, Sample, Series, at
from dfx_agent.catalogue import signals, verdicts
from dfx_agent.catalogue.alerts.declared.stability import NO_UPDATE

_DIRECTIONS = {"divergence": "up", "grad_norm": "up", "entropy": "down", "reward": "down",
               "length": "up", "reward_improving": "up"}  # fmt: skip


def active(*names: str) -> Series:
    """Every family with its onset, active or not, as an agent exports them."""
    rows: list[Sample] = []
    for name, direction in _DIRECTIONS.items():
        labels = {"symptom": name, "direction": direction}
        rows.append(at(signals.SYMPTOM_ACTIVE, float(name in names), **labels))
        if name in names and name != "reward_improving":
            rows.append(at(signals.SYMPTOM_ONSET, 71, **labels))
    return tuple(rows)


def both_directions(name: str) -> Series:
    """One family that left its range to both sides: still one family."""
    return tuple(
        at(signals.SYMPTOM_ACTIVE, 1, symptom=name, direction=direction)
        for direction in ("up", "down")
    )


def collapse(kind: str, num_steps: float, signal: str = "") -> Series:
    return (
        at(signals.COLLAPSE_STEPS, num_steps, kind=kind, signal=signal),
        at(signals.COLLAPSE_ONSET, 71, kind=kind, signal=signal),
    )


def drift(signal: str, ratio: float) -> Series:
    return (at(signals.DRIFT_RATIO, ratio, signal=signal),)


def nonfinite(**steps: float) -> Series:
    return tuple(
        at(signals.NONFINITE_STEPS, steps.get(where, 0), where=where)
        for where in ("grad", "logprob", "loss", "reward")
    )


def diverges(cause: str) -> Series:
    return (at(verdicts.VERDICT_ACTIVE, 1, kind="divergence", cause=cause, rank="0"),)


def scores(num_identical_steps: float, *, had_signal: bool) -> Series:
    return (
        at(signals.IDENTICAL_SCORE_STEPS, num_identical_steps),
        at(signals.SCORE_SIGNAL_SEEN, float(had_signal)),
    )


CASES = {
    ("DfxTrainingDivergence", "critical"): Cases(
        fires=(
            active("entropy", "length", "grad_norm"),
            active("reward", "length"),
            active("reward", "entropy", "reward_improving"),
            collapse("blow_up", 5, "loss"),
            collapse("truncation", 3),
            collapse("dead", 8),
            collapse("spikes", 3, "loss"),
            collapse("entropy_fall", 1, "entropy"),
            collapse("not_learning", 32),
            collapse("reward_fall", 20, "reward"),
            (*active("reward_improving"), *collapse("entropy_fall", 1, "entropy")),
        ),
        silent=(
            active(),
            active("reward"),
            active("entropy", "length"),
            (*active("length"), *both_directions("entropy")[:1]),
            active("entropy", "length", "grad_norm", "reward_improving"),
            collapse("blow_up", 4, "loss"),
            collapse("truncation", 2),
            collapse("dead", 7),
            collapse("spikes", 2, "loss"),
            collapse("entropy_fall", 0, "entropy"),
            collapse("not_learning", 31),
            collapse("reward_fall", 19, "reward"),
            (*active("reward_improving"), *collapse("blow_up", 9, "ref_kl")),
        ),
    ),
    ("DfxTrainingDivergenceClassic", "critical"): Cases(
        fires=(active("divergence", "grad_norm", "entropy"),),
        silent=(
            active("divergence", "grad_norm"),
            active("divergence", "entropy"),
            active("grad_norm", "entropy"),
            active("divergence", "grad_norm", "entropy", "reward_improving"),
        ),
    ),
    ("DfxTrainingUnstable", "warning"): Cases(
        fires=(
            active("entropy", "length"),
            active("entropy", "length", "grad_norm", "reward_improving"),
        ),
        silent=(
            active(),
            active("entropy"),
            both_directions("entropy"),
            active("entropy", "length", "reward_improving"),
        ),
    ),
    **{
        (alert, "info"): Cases(
            fires=(active(symptom),),
            silent=(active(*(set(_DIRECTIONS) - {symptom})),),
        )
        for alert, symptom in (
            ("DfxSymptomKl", "divergence"),
            ("DfxSymptomGradNorm", "grad_norm"),
            ("DfxSymptomEntropy", "entropy"),
            ("DfxSymptomReward", "reward"),
            ("DfxSymptomLength", "length"),
        )
    },
    ("DfxEntropyDrift", "warning"): Cases(
        fires=(drift("entropy", 5.1),),
        silent=(drift("entropy", 4.9), drift("grad_norm", 9)),
    ),
    ("DfxLengthDrift", "warning"): Cases(
        fires=(drift("response_length", 2.1),),
        silent=(drift("response_length", 1.9), drift("entropy", 9)),
    ),
    ("DfxReferenceKlDrift", "warning"): Cases(
        fires=(drift("ref_kl", 21),),
        silent=(drift("ref_kl", 19), drift("entropy", 30)),
    ),
    ("DfxNoLearningSignal", "critical"): Cases(
        fires=(scores(8, had_signal=True),),
        silent=(scores(7, had_signal=True), scores(8, had_signal=False)),
    ),
    ("DfxNoLearningSignal", "warning"): Cases(
        fires=(scores(8, had_signal=False),),
        silent=(scores(7, had_signal=False), scores(8, had_signal=True)),
    ),
    ("DfxNonFinite", "critical"): Cases(
        fires=(
            nonfinite(logprob=1),
            nonfinite(loss=1),
            nonfinite(reward=1),
            nonfinite(grad=2),
            diverges(NO_UPDATE),
        ),
        silent=(nonfinite(), nonfinite(grad=1), diverges("entropy first")),
    ),
    ("DfxNonFinite", "warning"): Cases(
        fires=(nonfinite(grad=1),),
        silent=(nonfinite(), nonfinite(grad=2), nonfinite(loss=1)),
    ),
}
