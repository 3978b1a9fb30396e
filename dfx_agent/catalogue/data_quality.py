"""What goes through the pipeline: prompt and response lengths, truncation, aborts."""

from dfx_agent.catalogue.spec import PER_RANK, Metric, native

PROMPT_LENGTH = Metric(
    "dfx_prompt_length_tokens", "gauge", "tokens",
    (*PER_RANK, "stat", "variant", "scope", "env", "subset", "agent"),
    "Prompt length of the step's samples (mean, max, min).", "native",
)  # fmt: skip
RESPONSE_LENGTH = Metric(
    "dfx_response_length_tokens", "gauge", "tokens",
    (*PER_RANK, "stat", "variant", "env", "subset", "agent"),
    "Response length of the step's samples (mean, max, min); verl counts tool tokens too.",
    "native",
)  # fmt: skip
RESPONSE_CLIP_RATIO = Metric(
    "dfx_response_clip_ratio", "gauge", "ratio",
    (*PER_RANK, "variant", "stat", "scope", "env", "subset", "agent"),
    "Share of responses cut at the longest allowed length; verl V1: at the batch's longest.",
    "native",
)  # fmt: skip
PROMPT_CLIP_RATIO = Metric(
    "dfx_prompt_clip_ratio", "gauge", "ratio", PER_RANK,
    "Share of prompts at the longest allowed length.", "native",
)  # fmt: skip
ABORTED_RATIO = Metric(
    "dfx_aborted_ratio", "gauge", "ratio", (*PER_RANK, "why", "stat", "env", "subset", "agent"),
    "Share of aborted samples; verl: responses of length 0 only.", "native",
)  # fmt: skip
TURNS = Metric(
    "dfx_turns", "gauge", "", (*PER_RANK, "stat", "env", "subset", "agent"),
    "Turns per trajectory.", "native",
)  # fmt: skip

# only logged by frameworks: the mapping names them
# fmt: off
_NATIVE = (
    native(
        "dfx_empty_train_mask", "", (),
        "1 when a step trained on nothing: its mask was empty.",
    ),
    native(
        "dfx_masked_token_ratio", "ratio", (),
        "Share of completion tokens that are masked out of the loss.",
    ),
    native(
        "dfx_episode_length_steps", "", (),
        "Environment steps per episode.",
    ),
    native(
        "dfx_total_length_tokens", "tokens", ("stat", "variant", "scope", "env", "subset", "agent"),
        "Length of prompt and response; variant=non_prompt: everything but the prompt.",
    ),
    native(
        "dfx_response_ended_ratio", "ratio", (),
        "Share of responses that ended by themselves; the others were cut.",
    ),
    native(
        "dfx_stop_condition_ratio", "ratio", ("condition", "env", "subset", "agent"),
        "Share of the trajectories that stopped, by what stopped them.",
    ),
    native(
        "dfx_branches", "", ("stat", "env", "subset", "agent"),
        "Branches per trajectory.",
    ),
    native(
        "dfx_response_clip_samples", "", ("which",),
        "Samples cut at the longest allowed length.",
    ),
    native(
        "dfx_sample_keep_ratio", "ratio", ("mask",),
        "Share of samples that pass this mask.",
    ),
    native(
        "dfx_sample_filter_ratio", "ratio", ("which", "env"),
        "Share of samples that this filter takes.",
    ),
    native(
        "dfx_tool_calls", "", ("stat", "variant"),
        "Tool calls per trajectory.",
    ),
    native(
        "dfx_tool_failure_ratio", "ratio", (),
        "Share of tool calls that failed.",
    ),
    native(
        "dfx_tool_loop_exhausted_ratio", "ratio", (),
        "Share of trajectories that used up their tool calls.",
    ),
    native(
        "dfx_repetition_ratio", "ratio", (),
        "Share of responses that repeat themselves.",
    ),
    native(
        "dfx_env_timeout_ratio", "ratio", ("variant",),
        "Share of episodes ended by the time limit; variant=terminated: by the environment.",
    ),
    native(
        "dfx_env_metric", "", ("tag", "what"),
        "Figures of the environment under its own names.",
    ),
    native(
        "dfx_trainable_ratio", "ratio", ("which", "stat", "env", "subset", "agent"),
        "Share of samples that are valid, complete, admitted or trained on (which).",
    ),
    native(
        "dfx_filtered_groups", "", ("why",),
        "Prompt groups left out in the step; why=batch_trim: samples.",
    ),
    native(
        "dfx_filter_pass_ratio", "ratio", (),
        "Share of prompt groups that dynamic filtering lets pass.",
    ),
    native(
        "dfx_env_steps", "", (),
        "Environment steps since the run began.", kind="counter",
    ),
    native(
        "dfx_correct_ratio", "ratio", ("variant",),
        "Share of correct samples.",
    ),
    native(
        "dfx_score_distribution", "", ("which",),
        "ROLL's figures about the distribution of scores, under its own names.",
    ),
    native(
        "dfx_batch_env_share", "ratio", ("env",),
        "Share of the batch that comes from this environment.",
    ),
)
# fmt: on
