"""What goes through the pipeline: prompt and response lengths, truncation, aborts."""

from dfx_agent.metrics.spec import PER_RANK, Metric

PROMPT_LENGTH = Metric(
    "dfx_prompt_length_tokens", "gauge", "tokens", (*PER_RANK, "stat"),
    "Prompt length of the step's samples (mean, max, min).", "native",
)  # fmt: skip
RESPONSE_LENGTH = Metric(
    "dfx_response_length_tokens", "gauge", "tokens", (*PER_RANK, "stat", "variant"),
    "Response length of the step's samples (mean, max, min); verl counts tool tokens too.",
    "native",
)  # fmt: skip
RESPONSE_CLIP_RATIO = Metric(
    "dfx_response_clip_ratio", "gauge", "ratio", (*PER_RANK, "variant"),
    "Share of responses cut at the longest allowed length; verl V1: at the batch's longest.",
    "native",
)  # fmt: skip
PROMPT_CLIP_RATIO = Metric(
    "dfx_prompt_clip_ratio", "gauge", "ratio", PER_RANK,
    "Share of prompts at the longest allowed length.", "native",
)  # fmt: skip
ABORTED_RATIO = Metric(
    "dfx_aborted_ratio", "gauge", "ratio", (*PER_RANK, "why"),
    "Share of aborted samples; verl: responses of length 0 only.", "native",
)  # fmt: skip
TURNS = Metric(
    "dfx_turns", "gauge", "", (*PER_RANK, "stat"), "Turns per trajectory.", "native",
)  # fmt: skip

METRICS = (
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    RESPONSE_CLIP_RATIO,
    PROMPT_CLIP_RATIO,
    ABORTED_RATIO,
    TURNS,
)
