"""Whether training is healthy: policy KL, entropy, gradient norm, clipping, reward, losses."""

from dfx_agent.catalogue.spec import PER_RANK, Metric, native

ACTOR_ENTROPY = Metric(
    "dfx_actor_entropy_nats", "gauge", "nats", (*PER_RANK, "stat", "variant", "scope", "env"),
    "Entropy of the policy per response token; verl: of pi_old, before the update.", "native",
)  # fmt: skip
POLICY_KL = Metric(
    "dfx_policy_kl_k1_nats", "gauge", "nats", (*PER_RANK, "scope"),
    "E[log pi_old - log pi_new] over response tokens (k1 estimator, may be negative).", "native",
)  # fmt: skip
REF_KL = Metric(
    "dfx_ref_kl_nats", "gauge", "nats", (*PER_RANK, "variant"),
    "KL to the reference policy; the estimator is the framework's (verl: kl_loss_type). "
    'variant="reward" is the penalty inside the reward.', "native",
)  # fmt: skip
REF_KL_COEF = Metric(
    "dfx_ref_kl_coef", "gauge", "", (*PER_RANK, "variant"),
    "Coefficient of the KL to the reference policy.", "native",
)  # fmt: skip
ACTOR_GRAD_NORM = Metric(
    "dfx_actor_grad_norm", "gauge", "", (*PER_RANK, "scope"),
    "Global gradient norm of the actor before clipping; NaN or Inf on a skipped update.", "native",
)  # fmt: skip
CRITIC_GRAD_NORM = Metric(
    "dfx_critic_grad_norm", "gauge", "", PER_RANK,
    "Global gradient norm of the critic before clipping.", "native",
)  # fmt: skip
CLIP_FRACTION = Metric(
    "dfx_clip_fraction", "gauge", "ratio", (*PER_RANK, "stat", "variant", "scope"),
    "Share of response tokens whose policy ratio was clipped.", "native",
)  # fmt: skip
CLIP_FRACTION_LOW = Metric(
    "dfx_clip_fraction_low", "gauge", "ratio", (*PER_RANK, "stat"),
    "Share of tokens at the lower bound; verl: dual clip, negative advantages only.", "native",
)  # fmt: skip
ACTOR_LOSS = Metric(
    "dfx_actor_loss", "gauge", "", (*PER_RANK, "term", "stat", "scope"),
    "Actor loss by term (pg, total).", "native",
)  # fmt: skip
ENTROPY_LOSS = Metric(
    "dfx_actor_entropy_loss", "gauge", "nats", PER_RANK, "Entropy bonus of the loss.", "native",
)  # fmt: skip
CRITIC_LOSS = Metric(
    "dfx_critic_loss", "gauge", "", (*PER_RANK, "variant"), "Value loss of the critic.", "native",
)  # fmt: skip
VALUE_CLIP_FRACTION = Metric(
    "dfx_value_clip_fraction", "gauge", "ratio", PER_RANK, "Share of clipped values.", "native",
)  # fmt: skip
VALUE_EXPLAINED_VARIANCE = Metric(
    "dfx_value_explained_variance", "gauge", "", PER_RANK,
    "1 - var(returns - values) / var(returns).", "native",
)  # fmt: skip
LEARNING_RATE = Metric(
    "dfx_learning_rate", "gauge", "", (*PER_RANK, "model", "group"),
    "Learning rate by model.", "native",
)  # fmt: skip
REWARD = Metric(
    "dfx_reward", "gauge", "", (*PER_RANK, "stat", "variant", "scope", "env", "subset", "agent"),
    "Sequence reward of the step's samples (mean, max, min), KL penalty included.", "native",
)  # fmt: skip
SCORE = Metric(
    "dfx_score", "gauge", "", (*PER_RANK, "stat", "variant", "domain"),
    "Sequence score of the step's samples (mean, max, min), before any KL penalty.", "native",
)  # fmt: skip
ADVANTAGE = Metric(
    "dfx_advantage", "gauge", "", (*PER_RANK, "stat", "variant", "scope"),
    "Advantages over response tokens (mean, max, min).", "native",
)  # fmt: skip
RETURN = Metric(
    "dfx_return", "gauge", "", (*PER_RANK, "stat", "variant"),
    "Returns (mean, max, min).", "native",
)  # fmt: skip
VALUE = Metric(
    "dfx_value", "gauge", "", (*PER_RANK, "stat", "variant"), "Critic values.", "native",
)  # fmt: skip

# only logged by frameworks: the mapping names them
# fmt: off
_NATIVE = (
    native(
        "dfx_clip_fraction_high", "ratio", ("stat",),
        "Share of response tokens clipped at the upper bound of the policy ratio.",
    ),
    native(
        "dfx_policy_ratio", "", ("stat", "scope"),
        "pi_new / pi_old over response tokens.",
    ),
    native(
        "dfx_ref_logp_diff_nats", "nats", (),
        "E[log pi - log pi_ref] over response tokens.",
    ),
    native(
        "dfx_advantage_clip_ratio", "ratio", (),
        "Share of advantages that were clipped.",
    ),
    native(
        "dfx_value_squared_error", "", (),
        "Mean squared error of the critic's values.",
    ),
    native(
        "dfx_nonfinite_losses", "", (),
        "Losses of the step that were NaN or infinite, as the framework counts them.",
    ),
    native(
        "dfx_loss_perplexity", "", (),
        "exp of the loss per token, as the framework reports it.",
    ),
    native(
        "dfx_group_zero_std_ratio", "ratio", ("which", "env", "subset", "agent"),
        "Share of prompt groups whose samples all have the same reward: they teach nothing; "
        "which: all solved, none solved.",
    ),
    native(
        "dfx_group_zero_std_groups", "", ("reward",),
        "Prompt groups whose samples all have this reward.",
    ),
    native(
        "dfx_group_ratio", "", ("which",),
        "ROLL's figures about prompt groups, under its own names.",
    ),
    native(
        "dfx_variance_proxy", "", ("which",),
        "verl's proxies of the gradient's variance.",
    ),
    native(
        "dfx_sac_temperature", "", (),
        "Temperature of soft actor-critic.",
    ),
    native(
        "dfx_target_q", "", ("stat",),
        "Target of the Q functions over the batch.",
    ),
    native(
        "dfx_reward_scale_std", "", (),
        "Standard deviation that rewards are scaled by.",
    ),
    native(
        "dfx_policy_std", "", (),
        "Mean standard deviation of the policy's actions.",
    ),
)
# fmt: on
