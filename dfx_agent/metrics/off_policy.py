"""How far the policy that generated the samples is from the one that is trained on them."""

from dfx_agent.metrics.spec import PER_RANK, Metric

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
    "dfx_mismatch_kl_k3_nats", "gauge", "nats", PER_RANK,
    "E[exp(r) - r - 1] over response tokens, r = log pi_train - log pi_rollout.", "native",
)  # fmt: skip
ROLLOUT_TRAIN_LOGP_ABSDIFF = Metric(
    "dfx_rollout_train_logp_absdiff_nats", "gauge", "nats", (*PER_RANK, "stat"),
    "|log pi_rollout - log pi_train| over response tokens (mean, max).", "native",
)  # fmt: skip

METRICS = (POLICY_KL_K2, MISMATCH_KL_K1, MISMATCH_KL_K3, ROLLOUT_TRAIN_LOGP_ABSDIFF)
