"""Alerts on training health: the vote of five symptom families, its parts, drift, dead signals.

Conditions and thresholds: docs/concepts/training-health.md; what they were measured on:
docs/benchmarks.md, "Divergence".
"""

from dfx_agent.catalogue import signals, verdicts
from dfx_agent.catalogue.alerts.alert import Alert, Listing, Runbook
from dfx_agent.catalogue.alerts.conditions import (
    Agree,
    Compare,
    Either,
    Every,
    Series,
    Unless,
    series,
)
from dfx_agent.catalogue.alerts.samples import REWARD_IMPROVING
from dfx_agent.catalogue.alerts.thresholds import Threshold

FAMILIES = ("divergence", "grad_norm", "entropy", "reward", "length")

_MANY_FAMILIES = Threshold(
    "divergence_families", 3, "families", "so many symptom families agree, the reward not rising"
)
_FAMILIES_WITH_REWARD = Threshold(
    "divergence_families_with_reward", 2, "families",
    "so many symptom families agree, among them a reward that fell, or that jumped before "
    "responses grew",
)  # fmt: skip
_UNSTABLE_FAMILIES = Threshold(
    "unstable_families", 2, "families", "so many symptom families agree, the reward not rising"
)
_BLOW_UP_STEPS = Threshold(
    "blow_up_steps", 5, "steps",
    "for so many steps a signal is 20 times and 10 sigma above its baseline, or entropy 8 times "
    "below it, the reward not rising",
)  # fmt: skip
_SPIKE_STEPS = Threshold(
    "spike_steps", 3, "steps",
    "so many of the latest 64 steps were 1000 times and 10 sigma above the baseline of KL, "
    "gradient norm or loss",
)  # fmt: skip
_ENTROPY_FALL_STEPS = Threshold(
    "entropy_fall_steps", 1, "steps",
    "for so many steps the entropy has been a fifth of what it was within 20 steps, and 6 sigma "
    "below its baseline",
)  # fmt: skip
_TRUNCATION_STEPS = Threshold(
    "truncation_jump_steps", 3, "steps",
    "for so many steps most responses are truncated, where few were",
)  # fmt: skip
_DEAD_STEPS = Threshold(
    "dead_steps", 8, "steps",
    "for so many steps nearly all responses are truncated and the reward is at its lowest",
)  # fmt: skip
_REWARD_FALL_STEPS = Threshold(
    "reward_fall_steps", 20, "steps",
    "for so many steps the reward has been below its best by 6 typical changes and by half of what "
    "it had gained",
)  # fmt: skip
_NOT_LEARNING_STEPS = Threshold(
    "not_learning_steps", 32, "steps",
    "for so many steps the gradient norm (or loss and reference KL) is 0 and the reward stays at "
    "its lowest",
)  # fmt: skip
_ENTROPY_RATIO = Threshold(
    "entropy_drift_ratio", 5, "", "the median entropy is more than so many times that at the start"
)
_LENGTH_RATIO = Threshold(
    "length_drift_ratio", 2, "", "the median length is more than so many times that at the start"
)
_REFERENCE_KL_RATIO = Threshold(
    "reference_kl_drift_ratio", 20, "",
    "the median KL to the reference is more than so many times that at the start; a start below "
    "0.03 nats counts as 0.03",
)  # fmt: skip
_IDENTICAL_STEPS = Threshold(
    "identical_score_steps", 8, "steps", "all samples of a step scored the same for so many steps"
)
_NONFINITE_STEPS = Threshold(
    "nonfinite_gradient_steps", 2, "steps",
    "so many of the latest 5 steps had a gradient norm that is NaN or Inf",
)  # fmt: skip
# why a divergence is found: a gradient scaler leaves out every update
NO_UPDATE = "NaN or Inf, no update is made"
# a page continues through a restart of the agent; the running agent holds it with its latch
_KEEP_PAGE_SECONDS = 1800
_KEEP_SECONDS = 900
# a median of 8 steps that hovers about the limit is one drift
_KEEP_DRIFT_STEPS = 32


def _active(symptom: str) -> Compare:
    return Compare(series(signals.SYMPTOM_ACTIVE, symptom=symptom), "==", 1)


def _families(at_least: float) -> Agree:
    return Agree(series(signals.SYMPTOM_ACTIVE, symptom=FAMILIES), "symptom", at_least)


def _collapse(kind: str, at_least: float) -> Compare:
    return Compare(series(signals.COLLAPSE_STEPS, kind=kind), ">=", at_least)


def _nonfinite(*where: str) -> Series:
    return series(signals.NONFINITE_STEPS, where=where)


_IMPROVING = _active(REWARD_IMPROVING)
_ONSETS = Listing(
    series(signals.SYMPTOM_ONSET, symptom=FAMILIES), "{symptom} {direction} since step {value:.0f}"
)
_NONFINITE_WHERE = Listing(
    series(signals.NONFINITE_STEPS), "{where}: {value:.0f} of the latest 5 steps"
)
_SINGLES = {
    "DfxSymptomKl": ("divergence", "policy, reference or mismatch KL or the clip fraction rose"),
    "DfxSymptomGradNorm": ("grad_norm", "the gradient norm rose"),
    "DfxSymptomEntropy": ("entropy", "the policy's entropy rose or fell"),
    "DfxSymptomReward": ("reward", "the reward fell, or jumped before responses grew"),
    "DfxSymptomLength": ("length", "response length or truncation left their range"),
}

_DIVERGENCE_RUNBOOK = Runbook(
    meaning="Several families of training signals left their baselines within 10 steps of each "
    "other and the reward is not improving; or the reward fell and another family moved; or the "
    "reward jumped far above all earlier rewards in one step and responses became longer.",
    impact="A run that collapses costs compute with every further step and overwrites good "
    "checkpoints.",
    diagnosis="Compare the onset steps of the symptoms: the earliest names the cause more often "
    "than the strongest. Read samples of one step before the earliest onset, the onset, and five "
    "steps after. Look at mismatch KL (trainer against rollout engine) and at truncation.",
    mitigation="Keep the latest checkpoint before the earliest onset and roll back to it; lower "
    "the learning rate or the clip range; check the reward function on the samples just read. "
    "After a deliberate change, reset the baselines.",
)
_UNSTABLE_RUNBOOK = Runbook(
    meaning="Two families of training signals left their baselines within 10 steps.",
    impact="Often harmless by itself; real collapses pass through this state first.",
    diagnosis="See which families and since which step; compare with the evaluation score.",
    mitigation="Watch. Make sure that a checkpoint before the onset is preserved.",
)
_SINGLE_RUNBOOK = Runbook(
    meaning="One family of training signals left its own baseline.",
    impact="None by itself: context for the compound alerts.",
    diagnosis="See the signal's value against its band on the training stability board.",
    mitigation="None.",
)

DIVERGENCE = Alert(
    "DfxTrainingDivergence",
    "critical",
    "stability",
    Either(
        (
            Unless(_families(_MANY_FAMILIES), _IMPROVING),
            Every((_families(_FAMILIES_WITH_REWARD), _active("reward"))),
            Unless(_collapse("blow_up", _BLOW_UP_STEPS), _IMPROVING),
            _collapse("spikes", _SPIKE_STEPS),
            _collapse("entropy_fall", _ENTROPY_FALL_STEPS),
            _collapse("truncation", _TRUNCATION_STEPS),
            _collapse("dead", _DEAD_STEPS),
            _collapse("not_learning", _NOT_LEARNING_STEPS),
            _collapse("reward_fall", _REWARD_FALL_STEPS),
        )
    ),
    "Training is diverging: several independent signals agree, or one is far out of its range",
    _DIVERGENCE_RUNBOOK,
    inhibits=(
        "DfxTrainingDivergenceClassic",
        "DfxTrainingUnstable",
        "DfxRolloutDegraded",
        "DfxNoLearningSignal",
        "DfxEntropyDrift",
        "DfxLengthDrift",
        "DfxReferenceKlDrift",
        *_SINGLES,
    ),
    keep_seconds=_KEEP_PAGE_SECONDS,
    listing=_ONSETS,
)
# Without the veto it would page alone exactly where the vote is vetoed: while the reward improves.
CLASSIC = Alert(
    "DfxTrainingDivergenceClassic",
    "critical",
    "stability",
    Unless(Every((_active("divergence"), _active("grad_norm"), _active("entropy"))), _IMPROVING),
    "KL and gradient norm rose and entropy left its range",
    _DIVERGENCE_RUNBOOK,
    inhibits=(
        "DfxTrainingUnstable",
        "DfxEntropyDrift",
        "DfxLengthDrift",
        "DfxReferenceKlDrift",
        *_SINGLES,
    ),
    keep_seconds=_KEEP_PAGE_SECONDS,
    listing=_ONSETS,
)
UNSTABLE = Alert(
    "DfxTrainingUnstable",
    "warning",
    "stability",
    # while the reward rises two are learning: entropy falls, KL to the reference grows
    Either((Unless(_families(_UNSTABLE_FAMILIES), _IMPROVING), _families(_MANY_FAMILIES))),
    "Two training signals left their range together",
    _UNSTABLE_RUNBOOK,
    inhibits=tuple(_SINGLES),
    keep_seconds=_KEEP_SECONDS,
    listing=_ONSETS,
)
SINGLES = tuple(
    Alert(
        name,
        "info",
        "stability",
        _active(symptom),
        f"{what[0].upper()}{what[1:]}",
        _SINGLE_RUNBOOK,
        listing=Listing(
            series(signals.SYMPTOM_ONSET, symptom=symptom), "{direction} since step {value:.0f}"
        ),
    )
    for name, (symptom, what) in _SINGLES.items()
)
ENTROPY_DRIFT = Alert(
    "DfxEntropyDrift",
    "warning",
    "stability",
    Compare(series(signals.DRIFT_RATIO, signal="entropy"), ">", _ENTROPY_RATIO),
    "Entropy is more than 5 times what it was at the start",
    Runbook(
        meaning="The median entropy of the latest 8 steps is more than 5 times that of the first.",
        impact="Slow growth escapes the step-to-step detector; it ends in noise instead of text.",
        diagnosis="Read samples: are they longer, repetitive, in mixed languages?",
        mitigation="Lower the entropy bonus or the learning rate; strengthen the reference KL.",
    ),
    keep_steps=_KEEP_DRIFT_STEPS,
)
LENGTH_DRIFT = Alert(
    "DfxLengthDrift",
    "warning",
    "stability",
    Compare(series(signals.DRIFT_RATIO, signal="response_length"), ">", _LENGTH_RATIO),
    "Responses are more than twice as long as at the start",
    Runbook(
        meaning="The median response length of the latest 8 steps is more than twice that of the "
        "first.",
        impact="Steps become slower and memory peaks higher; truncation follows.",
        diagnosis="Does the score rise with the length? Are long responses finished or repetitive?",
        mitigation="Raise the limit if the growth is wanted; else penalise length or truncation.",
    ),
    keep_steps=_KEEP_DRIFT_STEPS,
)
# A warning and no page: a run that learns moves away from its reference too. Of 45 healthy public
# runs the second highest reached 8.5 times its start; the highest, 65 times, is warned of.
REFERENCE_KL_DRIFT = Alert(
    "DfxReferenceKlDrift",
    "warning",
    "stability",
    Compare(series(signals.DRIFT_RATIO, signal="ref_kl"), ">", _REFERENCE_KL_RATIO),
    "KL to the reference is more than 20 times what it was at the start",
    Runbook(
        meaning="The median KL to the reference model of the latest 8 steps is more than 20 times "
        "that of the first, and more than 0.6 nats.",
        impact="The policy is another model than the one it started from: what the reward does not "
        "ask for may be lost, and a KL penalty becomes most of the loss.",
        diagnosis="Did it jump at one step, or grow while the reward rose? Read samples, and look "
        "at a held-out score.",
        mitigation="Strengthen the reference KL or lower the learning rate; after a jump go back "
        "to a checkpoint before it.",
    ),
    keep_steps=_KEEP_DRIFT_STEPS,
)
_NO_SIGNAL_RUNBOOK = Runbook(
    meaning="For 8 steps or more, every sample of a step got the same score.",
    impact="Group-relative advantages are zero: the job costs compute and learns nothing.",
    diagnosis="Is every sample solved, or failed? Score one sample by hand with the reward "
    "function; look for exceptions and timeouts in reward workers.",
    mitigation="Repair the reward function, or choose harder or easier prompts.",
)
_NO_SIGNAL = Compare(series(signals.IDENTICAL_SCORE_STEPS), ">=", _IDENTICAL_STEPS)
_HAD_SIGNAL = Compare(series(signals.SCORE_SIGNAL_SEEN), "==", 1)
NO_LEARNING_SIGNAL = Alert(
    "DfxNoLearningSignal",
    "warning",
    "stability",
    Unless(_NO_SIGNAL, _HAD_SIGNAL),
    "All samples of a step have had the same score for 8 steps",
    _NO_SIGNAL_RUNBOOK,
)
LEARNING_SIGNAL_LOST = Alert(
    "DfxNoLearningSignal",
    "critical",
    "stability",
    Every((_NO_SIGNAL, _HAD_SIGNAL)),
    "All samples of a step have had the same score for 8 steps, after steps with different scores",
    _NO_SIGNAL_RUNBOOK,
)
_NONFINITE_RUNBOOK = Runbook(
    meaning="A value that the job reported is NaN or infinite.",
    impact="In a log-probability, loss or reward: weights or rollout are broken and every later "
    "update spreads it. In the gradient norm alone: frameworks skip such an update, and one can be "
    "harmless; where every update is skipped nothing is learned.",
    diagnosis="Check log-probabilities first, then the loss, then gradients; look at the samples "
    'of that step (output like "!!!!" means broken weights in the rollout engine).',
    mitigation="Stop, and restart from the latest checkpoint before it. For gradients alone: check "
    "the loss scale and the learning rate.",
)
NONFINITE = Alert(
    "DfxNonFinite",
    "critical",
    "stability",
    Either(
        (
            Compare(_nonfinite("logprob", "loss", "reward"), ">=", 1),
            Compare(_nonfinite("grad"), ">=", _NONFINITE_STEPS),
            Compare(series(verdicts.VERDICT_ACTIVE, kind="divergence", cause=NO_UPDATE), "==", 1),
        )
    ),
    "NaN or Inf in what the job trains on",
    _NONFINITE_RUNBOOK,
    keep_steps=10,
    keep_seconds=_KEEP_SECONDS,
    listing=_NONFINITE_WHERE,
)
NONFINITE_GRADIENT = Alert(
    "DfxNonFinite",
    "warning",
    "stability",
    Unless(
        Compare(_nonfinite("grad"), ">=", 1), Compare(_nonfinite("grad"), ">=", _NONFINITE_STEPS)
    ),
    "A gradient norm was NaN or Inf",
    _NONFINITE_RUNBOOK,
    listing=_NONFINITE_WHERE,
)

ALERTS = (
    DIVERGENCE,
    CLASSIC,
    UNSTABLE,
    *SINGLES,
    ENTROPY_DRIFT,
    LENGTH_DRIFT,
    REFERENCE_KL_DRIFT,
    LEARNING_SIGNAL_LOST,
    NO_LEARNING_SIGNAL,
    NONFINITE,
    NONFINITE_GRADIENT,
)
