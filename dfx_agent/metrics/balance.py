"""How the work is spread over ranks: active, waiting, idle, tokens, queues."""

from dfx_agent.metrics.spec import PER_RANK, Metric

RANK_INFO = Metric(
    "dfx_rank", "info", "", (*PER_RANK, "node", "local_rank", "world_size", "pid"),
    "The process behind a rank.", "agent",
)  # fmt: skip
RANK_UP = Metric(
    "dfx_rank_up", "gauge", "", PER_RANK,
    "1 while the process lives, 0 after it exited or died.", "agent",
)  # fmt: skip
WALL_SECONDS = Metric(
    "dfx_rank_wall_seconds", "counter", "seconds", PER_RANK,
    "Time accounted for: active + all waits + idle, exactly.", "derived",
)  # fmt: skip
ACTIVE_SECONDS = Metric(
    "dfx_rank_active_seconds", "counter", "seconds", PER_RANK,
    "Time with at least one stage running that is not waiting.", "shim",
)  # fmt: skip
STAGE_ACTIVE_SECONDS = Metric(
    "dfx_rank_stage_active_seconds", "counter", "seconds", (*PER_RANK, "stage"),
    "Exclusive time of the stage, waits taken out; stages that overlap may sum to more than "
    "dfx_rank_active_seconds_total.", "shim",
)  # fmt: skip
WAIT_SECONDS = Metric(
    "dfx_rank_wait_seconds", "counter", "seconds", (*PER_RANK, "kind", "stage"),
    "Time in a wait of this kind while no stage was active; stage is the enclosing one.", "shim",
)  # fmt: skip
IDLE_SECONDS = Metric(
    "dfx_rank_idle_seconds", "counter", "seconds", PER_RANK,
    "Time in which nothing was recorded as running or waiting.", "derived",
)  # fmt: skip
RANK_TOKENS = Metric(
    "dfx_rank_tokens", "counter", "tokens", (*PER_RANK, "kind"),
    "Tokens this rank processed, by kind (prompt, response).", "shim",
)  # fmt: skip
QUEUE_DEPTH = Metric(
    "dfx_queue_depth", "gauge", "", (*PER_RANK, "queue"), "Items in the queue now.", "shim",
)  # fmt: skip

METRICS = (
    RANK_INFO,
    RANK_UP,
    WALL_SECONDS,
    ACTIVE_SECONDS,
    STAGE_ACTIVE_SECONDS,
    WAIT_SECONDS,
    IDLE_SECONDS,
    RANK_TOKENS,
    QUEUE_DEPTH,
)
