"""How far the policy that generated the samples is from the one that is trained on them."""

from dfx_agent.catalogue.spec import PER_RANK, Metric, native

POLICY_KL_K2 = Metric(
    "dfx_policy_kl_k2_nats", "gauge", "nats", PER_RANK,
    "E[0.5 (log pi_old - log pi_new)^2] over response tokens (k2 estimator).", "native",
)  # fmt: skip
MISMATCH_KL_K1 = Metric(
    "dfx_mismatch_kl_k1_nats", "gauge", "nats", PER_RANK,
    "E[log pi_rollout - log pi_train] over response tokens (k1 estimator, may be negative).",
    "native",
)  # fmt: skip
MISMATCH_KL_K3 = Metric(
    "dfx_mismatch_kl_k3_nats", "gauge", "nats", (*PER_RANK, "stat", "env"),
    "E[exp(r) - r - 1] over response tokens, r = log pi_train - log pi_rollout.", "native",
)  # fmt: skip
ROLLOUT_TRAIN_LOGP_ABSDIFF = Metric(
    "dfx_rollout_train_logp_absdiff_nats", "gauge", "nats", (*PER_RANK, "stat"),
    "|log pi_rollout - log pi_train| over response tokens (mean, max).", "native",
)  # fmt: skip

# only logged by frameworks: the mapping names them
# fmt: off
_NATIVE = (
    native(
        "dfx_rollout_train_prob_corr", "", (),
        "Correlation of the tokens' probabilities in rollout and training engine.",
    ),
    native(
        "dfx_rollout_train_prob_absdiff", "", ("stat", "agg"),
        "|p_rollout - p_train| over response tokens.",
    ),
    native(
        "dfx_rollout_train_prob_valid", "", (),
        "1 where the comparison of rollout and training probabilities could be made.",
    ),
    native(
        "dfx_mismatch_ppl_ratio", "", (),
        "Perplexity of the training engine / of the rollout engine.",
    ),
    native(
        "dfx_mismatch_detail", "", ("which", "stat"),
        "Further figures about rollout against training policy, under the framework's own "
        "names.",
    ),
    native(
        "dfx_is_weight", "", ("stat", "scope", "level"),
        "Importance weight pi_train / pi_rollout, per token or sequence (level).",
    ),
    native(
        "dfx_is_weight_clip_ratio", "ratio", ("side", "level"),
        "Share of importance weights beyond their bounds.",
    ),
    native(
        "dfx_is_effective_sample_ratio", "ratio", (),
        "Effective sample size of the importance weights / number of samples.",
    ),
    native(
        "dfx_rejection_ratio", "", ("which",),
        "Rejection sampling against the rollout policy: share of tokens or sequences rejected, "
        "by rule.",
    ),
    native(
        "dfx_policy_lag_versions", "", ("stat", "variant", "scope", "ref"),
        "Weight updates between sampling and training, by the latest weights of a trajectory; "
        "variant=in_flight: so far, of rollouts that are not done.",
    ),
    native(
        "dfx_policy_lag_worst_versions", "", ("stat",),
        "Weight updates between sampling and training, by the oldest weights of a trajectory.",
    ),
    native(
        "dfx_policy_lag_queue_versions", "", ("stat", "part"),
        "Part of the lag spent generating (in_flight) and waiting (in_queue).",
    ),
    native(
        "dfx_policy_lag_share", "ratio", ("lag",),
        "Share of the samples with this lag, by the latest weights of a trajectory.",
    ),
    native(
        "dfx_policy_lag_worst_share", "ratio", ("lag",),
        "Share of the samples with this lag by the oldest weights of a trajectory; lag is 0, 1, 2, "
        "3, 4-7 or 8+.",
    ),
    native(
        "dfx_stale_ratio", "ratio", (),
        "Samples of the step older than may be trained on / those and the ones trained on: before "
        "any of them is dropped or evicted.",
    ),
    native(
        "dfx_mismatch_kl_lag_nats", "nats", ("lag",),
        "dfx_mismatch_kl_k3_nats over the tokens with this lag: 0, 1, 2, 3, 4-7 or 8+ versions.",
    ),
    native(
        "dfx_mismatch_kl_position_nats", "nats", ("position",),
        "dfx_mismatch_kl_k3_nats by the place of a token in its response: its first 256 tokens "
        "(first), of the others the last 256 (last), and what is between (middle).",
    ),
    native(
        "dfx_publication_lag_ticks", "", ("stat",),
        "Inference ticks between publication of weights and their use.",
    ),
    native(
        "dfx_step_stale_samples", "", ("action",),
        "Samples set aside as stale since the last report; verl counts prompt groups.",
    ),
    native(
        "dfx_stale_samples", "", ("action",),
        "Stale samples since the run began, by what became of them.", kind="counter",
    ),
    native(
        "dfx_stale_samples_pending", "", (),
        "Active and queued samples that count against the staleness budget.",
    ),
    native(
        "dfx_evicted_staleness_versions", "", ("stat",),
        "Lag of the samples evicted as stale.",
    ),
    native(
        "dfx_learner_wait_seconds", "seconds", ("cause",),
        "Time the learner waited in the step, by cause; the causes are never merged.",
    ),
    native(
        "dfx_learner_phase_seconds", "seconds", ("phase",),
        "Time of one phase of the learner in the step; pipeline: h2d + train + param_sync + "
        "weight_sync.",
    ),
    native(
        "dfx_learner_phase_ratio", "ratio", ("phase",),
        "Share of the learner's step that a phase had; accounted: all that have a name, other: "
        "the rest.",
    ),
    native(
        "dfx_collector_phase_seconds", "seconds", ("phase",),
        "Time of one phase of the collector; stale until its next report.",
    ),
    native(
        "dfx_collector_backpressure_seconds", "seconds", (),
        "Time the collector was held back since the run began.", kind="counter",
    ),
    native(
        "dfx_rollout_backpressure_seconds", "seconds", ("variant",),
        "Time the rollout was held back in the step.",
    ),
    native(
        "dfx_rollouts_read", "", (),
        "Rollouts the learner read in the step.",
    ),
    native(
        "dfx_rollouter_seconds", "seconds", ("which",),
        "Time the rollouter was active, and time of one weight version.",
    ),
    native(
        "dfx_rollouter_samples", "", (),
        "Samples the rollouter generated in the step.",
    ),
)
# fmt: on
