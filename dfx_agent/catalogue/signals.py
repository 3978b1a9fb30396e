"""Training signals against their own baselines, and the symptoms the alerts vote on."""

from dfx_agent.catalogue.spec import PER_NODE, Metric

SIGNAL_VALUE = Metric(
    "dfx_signal_value", "gauge", "", (*PER_NODE, "signal"),
    "The signal's value at the latest step, in the unit of the metric it comes from.", "derived",
)  # fmt: skip
SIGNAL_Z = Metric(
    "dfx_signal_z", "gauge", "", (*PER_NODE, "signal"),
    "Distance from the baseline of the latest 64 steps in robust standard deviations (median and "
    "MAD with floors; of the logarithm for positive signals); absent when not scored.", "derived",
)  # fmt: skip
SIGNAL_CUSUM = Metric(
    "dfx_signal_cusum", "gauge", "", (*PER_NODE, "signal", "direction"),
    "Sum of min(z, 6) - 1 over steps, never below 0; alarms above 8 and starts again at 0.",
    "derived",
)  # fmt: skip
SIGNAL_RECENT_MEDIAN = Metric(
    "dfx_signal_recent_median", "gauge", "", (*PER_NODE, "signal"),
    "Median of the signal's latest 8 values.", "derived",
)  # fmt: skip
BASELINE_LOW = Metric(
    "dfx_baseline_low", "gauge", "", (*PER_NODE, "signal"),
    "Lower end of the baseline band (z = -2), in the signal's unit.", "derived",
)  # fmt: skip
BASELINE_HIGH = Metric(
    "dfx_baseline_high", "gauge", "", (*PER_NODE, "signal"),
    "Upper end of the baseline band (z = 2), in the signal's unit.", "derived",
)  # fmt: skip
BASELINE_READY = Metric(
    "dfx_baseline_ready", "gauge", "", (*PER_NODE, "signal"),
    "1 once the baseline holds 12 steps and the signal has varied; 0 while its scale is widened.",
    "derived",
)  # fmt: skip
SYMPTOM_ACTIVE = Metric(
    "dfx_symptom_active", "gauge", "", (*PER_NODE, "symptom", "direction"),
    "1 for up to 10 steps after a signal of the family alarmed, a small move only while it lasts, "
    "longer while a critical compound is active; divergence, grad_norm, entropy, reward, length "
    "vote, reward_improving vetoes.",
    "derived",
)  # fmt: skip
SYMPTOM_ONSET = Metric(
    "dfx_symptom_onset_step", "gauge", "", (*PER_NODE, "symptom", "direction"),
    "Step at which the change behind an active symptom began.", "derived",
)  # fmt: skip
DRIFT_RATIO = Metric(
    "dfx_drift_ratio", "gauge", "", (*PER_NODE, "signal"),
    "Median of the latest 8 values / median of the 5th to 21st.", "derived",
)  # fmt: skip
DRIFT_DIFFERENCE = Metric(
    "dfx_drift_difference", "gauge", "", (*PER_NODE, "signal"),
    "Median of the latest 8 values - median of the 5th to 21st (reward, truncation).", "derived",
)  # fmt: skip
COLLAPSE_STEPS = Metric(
    "dfx_collapse_steps", "gauge", "", (*PER_NODE, "kind", "signal"),
    "Steps in a row with a state that needs no vote. blow_up: the signal is 20 times and 10 robust "
    "standard deviations above its baseline, or entropy 8 times below it; spikes: steps of the "
    "latest 64 at which it was 1000 times above; entropy_fall: to a fifth within 20 steps; "
    "truncation: most responses are cut, where few were; dead: nearly all are cut, the reward at "
    "its lowest; not_learning: no gradient, the reward at its lowest; reward_fall: the reward far "
    "below its best.",
    "derived",
)  # fmt: skip
COLLAPSE_ONSET = Metric(
    "dfx_collapse_onset_step", "gauge", "", (*PER_NODE, "kind", "signal"),
    "First of the steps that dfx_collapse_steps counts.", "derived",
)  # fmt: skip
NONFINITE_STEPS = Metric(
    "dfx_nonfinite_steps", "gauge", "", (*PER_NODE, "where"),
    "Steps of the latest 5 that reported NaN or Inf in a gradient norm, a log-probability "
    "statistic, a loss or a reward.", "derived",
)  # fmt: skip
IDENTICAL_SCORE_STEPS = Metric(
    "dfx_identical_score_steps", "gauge", "", PER_NODE,
    "Consecutive steps whose highest and lowest score were the same.", "derived",
)  # fmt: skip
SCORE_SIGNAL_SEEN = Metric(
    "dfx_score_signal_seen", "gauge", "", PER_NODE,
    "1 once at least 8 steps had different scores: before, there was no signal to lose. 0 while "
    "all samples have the best score of the run: a solved task has none to find.", "derived",
)  # fmt: skip
ABORTED_RECENT_MEDIAN = Metric(
    "dfx_aborted_recent_median", "gauge", "ratio", PER_NODE,
    "Share of a step's samples that were aborted, median of the latest 8 steps that reported one.",
    "derived",
)  # fmt: skip
ABORTED_RISE = Metric(
    "dfx_aborted_rise_ratio", "gauge", "ratio", PER_NODE,
    "dfx_aborted_recent_median minus the median of the first 8 steps that reported one.", "derived",
)  # fmt: skip
TIMEOUT_RISE = Metric(
    "dfx_rollout_timeout_rise_ratio", "gauge", "ratio", PER_NODE,
    "dfx_rollout_timeout_ratio, median of the latest 8 steps minus the median of the first 8. "
    "Absent while there is no difference.", "derived",
)  # fmt: skip
SIGNAL_LATCHED = Metric(
    "dfx_signal_latched", "gauge", "", PER_NODE,
    "1 while a critical compound is active and the baselines are frozen.", "derived",
)  # fmt: skip

LATE_SIGNALS = Metric(
    "dfx_late_signal_values", "counter", "", PER_NODE,
    "Values that came after their step had been judged: they are in no signal.", "agent",
)  # fmt: skip
DETECTOR = Metric(
    "dfx_signal_detector", "info", "",
    ("window_steps", "gap_steps", "warm_steps", "active_steps", "calm_steps", "latch_steps",
     "cusum_z_cap", "cusum_slack", "cusum_alarm"),
    "Parameters that every signal is judged with; all lengths are in steps.", "agent",
)  # fmt: skip
SIGNAL_PARAMETERS = Metric(
    "dfx_signal_parameters", "info", "",
    ("signal", "symptom", "directions", "least_value", "scale_floor"),
    "How each signal is scored: smaller values count as least_value (empty: no logarithm), "
    "scale_floor is the smallest standard deviation believed.", "agent",
)  # fmt: skip
