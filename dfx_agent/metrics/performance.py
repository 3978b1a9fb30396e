"""How long steps and stages take, and when they ran."""

from dfx_agent.metrics.spec import PER_RANK, Metric

RUN_INFO = Metric(
    "dfx_run", "info", "", ("run", "framework", "attempt"),
    "A training run the agent follows; attempt counts restarts.", "agent",
)  # fmt: skip
STEP = Metric(
    "dfx_step", "gauge", "", PER_RANK, "Training step the process is in now.", "shim",
)  # fmt: skip
RANK_STEP_SECONDS = Metric(
    "dfx_rank_step_seconds", "gauge", "seconds", PER_RANK,
    "Wall time of the rank's last closed step, from set_step to set_step.", "derived",
)  # fmt: skip
RANK_STAGE_SECONDS = Metric(
    "dfx_rank_stage_seconds", "gauge", "seconds", (*PER_RANK, "stage"),
    "Exclusive time of the stage in the rank's last closed step, waits taken out.", "derived",
)  # fmt: skip
BUBBLE_RATIO = Metric(
    "dfx_pipeline_bubble_ratio", "gauge", "ratio", ("run", "role"),
    "1 - sum of active time over ranks / (ranks x wall time), of the last closed step.", "derived",
)  # fmt: skip
STAGE_START = Metric(
    "dfx_stage_start_timestamp_seconds", "gauge", "seconds", (*PER_RANK, "stage", "slot"),
    "When the stage last began, Unix time; slot (0 to 3, in turn) tells repeats within a step "
    "apart; idle is a stage of its own.", "shim",
)  # fmt: skip
STAGE_END = Metric(
    "dfx_stage_end_timestamp_seconds", "gauge", "seconds", (*PER_RANK, "stage", "slot"),
    "When the stage last ended, Unix time; absent while its first run is open.", "shim",
)  # fmt: skip
INFLIGHT_SECONDS = Metric(
    "dfx_rank_inflight_seconds", "gauge", "seconds", (*PER_RANK, "kind", "stage"),
    "How long the innermost open stage or wait has been open; no series when nothing is.", "shim",
)  # fmt: skip
POLICY_VERSION = Metric(
    "dfx_policy_version", "gauge", "", PER_RANK,
    "Version of the weights the process acts with.", "shim",
)  # fmt: skip
NATIVE_STAGE_SECONDS = Metric(
    "dfx_stage_seconds", "gauge", "seconds", (*PER_RANK, "stage"),
    "Stage time as the framework's own timer reports it (controller's view).", "native",
)  # fmt: skip
STEP_SECONDS = Metric(
    "dfx_step_seconds", "gauge", "seconds", PER_RANK,
    "Step time as the framework itself reports it.", "native",
)  # fmt: skip
TOKENS_PER_SECOND_PER_GPU = Metric(
    "dfx_tokens_per_second_per_gpu", "gauge", "", PER_RANK,
    "Tokens per second and device as the framework reports it.", "native",
)  # fmt: skip
STEP_TOKENS = Metric(
    "dfx_step_tokens", "gauge", "tokens", PER_RANK,
    "Prompt and response tokens of the step as the framework reports them.", "native",
)  # fmt: skip

METRICS = (
    RUN_INFO,
    STEP,
    RANK_STEP_SECONDS,
    RANK_STAGE_SECONDS,
    BUBBLE_RATIO,
    STAGE_START,
    STAGE_END,
    INFLIGHT_SECONDS,
    POLICY_VERSION,
    NATIVE_STAGE_SECONDS,
    STEP_SECONDS,
    TOKENS_PER_SECOND_PER_GPU,
    STEP_TOKENS,
)
