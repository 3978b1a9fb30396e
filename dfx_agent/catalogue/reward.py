"""Scoring: its time, its terms, validation scores."""

from dfx_agent.catalogue.spec import native

# fmt: off
METRICS = (
    native(
        "dfx_reward_seconds", "seconds", ("stat", "variant", "domain"),
        "Time to score one sample.",
    ),
    native(
        "dfx_reward_term", "", ("term", "stat", "variant", "env", "subset", "agent"),
        "One term of the reward, under the job's own name.",
    ),
    native(
        "dfx_token_reward", "", ("stat",),
        "Reward per token.",
    ),
    native(
        "dfx_reward_clip_ratio", "ratio", ("variant",),
        "Share of rewards that were clipped.",
    ),
    native(
        "dfx_group_reward_std", "", (),
        "Standard deviation of rewards within a prompt group.",
    ),
    native(
        "dfx_reward_category_ratio", "ratio", ("which",),
        "Share of samples that the reward function put into this category.",
    ),
    native(
        "dfx_val_score", "", ("name",),
        "Scores of a validation, under the framework's own names.",
    ),
)
# fmt: on
