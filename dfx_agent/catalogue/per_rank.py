"""What each rank has done: active, waiting and idle time, tokens, queues."""

from dfx_agent.catalogue.spec import PER_RANK, Metric, native

# what the agent counts stages under that an exception ended
STAGE_FAILURES_COUNTER = "failures/"

RANK_INFO = Metric(
    "dfx_rank", "info", "", (*PER_RANK, "node", "local_rank", "world_size", "pid", "source"),
    "The process of a rank; source is guest, or passive if it is only observed from outside.",
    "agent",
)  # fmt: skip
RANK_UP = Metric(
    "dfx_rank_up", "gauge", "", PER_RANK,
    "1 while the process lives, 0 after it exited, died or was detached.", "agent",
    subject="rank", value=lambda rank: rank.state in {"live", "unknown"},
)  # fmt: skip
WALL_SECONDS = Metric(
    "dfx_rank_wall_seconds", "counter", "seconds", PER_RANK,
    "Time accounted for: active + all waits + idle, exactly.", "derived",
    subject="guest", value=lambda rank: rank.totals.wall_seconds,
)  # fmt: skip
ACTIVE_SECONDS = Metric(
    "dfx_rank_active_seconds", "counter", "seconds", PER_RANK,
    "Time with at least one stage running that is not waiting.", "shim",
    subject="guest", value=lambda rank: rank.totals.active_seconds,
)  # fmt: skip
STAGE_ACTIVE_SECONDS = Metric(
    "dfx_rank_stage_active_seconds", "counter", "seconds", (*PER_RANK, "stage"),
    "Exclusive time of the stage, without waits; stages that overlap may sum to more than "
    "dfx_rank_active_seconds_total.", "shim",
    subject="guest", value=lambda rank: rank.totals.stage_seconds,
)  # fmt: skip
WAIT_SECONDS = Metric(
    "dfx_rank_wait_seconds", "counter", "seconds", (*PER_RANK, "kind", "stage"),
    "Time in a wait of this kind while no stage was active; stage is the enclosing one. remote: "
    "for the answer of a server (HTTP, gRPC, ZeroMQ).", "shim",
    subject="guest", value=lambda rank: {
        (kind, stage): seconds
        for kind, stages in rank.totals.wait_seconds.items()
        for stage, seconds in stages.items()
    },
)  # fmt: skip
IDLE_SECONDS = Metric(
    "dfx_rank_idle_seconds", "counter", "seconds", PER_RANK,
    "Time in which nothing was recorded as running or waiting.", "derived",
    subject="guest", value=lambda rank: rank.totals.idle_seconds,
)  # fmt: skip
RANK_TOKENS = Metric(
    "dfx_rank_tokens", "counter", "tokens", (*PER_RANK, "kind"),
    "Tokens this rank processed, by kind (prompt, response). If the job reports none, forward: "
    "tokens that entered trained forward passes, padding included.", "shim",
    subject="guest", value=lambda rank: rank.tokens_total,
)  # fmt: skip
STAGE_FAILURES = Metric(
    "dfx_rank_stage_failures", "counter", "", (*PER_RANK, "stage"),
    "Times that an exception ended the stage. Stage reward: exceptions of the reward function, "
    "where the framework has a stage for each call of it.", "shim",
    subject="guest", value=lambda rank: {
        (name.removeprefix(STAGE_FAILURES_COUNTER),): number
        for name, number in rank.counters_total.items()
        if name.startswith(STAGE_FAILURES_COUNTER)
    },
)  # fmt: skip
QUEUE_DEPTH = Metric(
    "dfx_queue_depth", "gauge", "", (*PER_RANK, "queue", "stat"),
    "Items in the queue now; stat is empty, or another statistic that the framework reports.",
    "shim",
    subject="guest", value=lambda rank: {(queue, ""): n for queue, n in rank.queue_depth.items()},
)  # fmt: skip

# only logged by frameworks: the mapping names them
# fmt: off
_NATIVE = (
    native(
        "dfx_dp_tokens", "tokens", ("stat", "cluster"),
        "Tokens per data-parallel rank before (min, max) and after (balanced_*) reordering: the "
        "controller's plan.",
    ),
    native(
        "dfx_dp_row_imbalance", "", (),
        "Largest / mean token load of a batch row.",
    ),
    native(
        "dfx_padding_ratio", "ratio", ("stage",),
        "Share of padding: in the batch (TRL), taken out by dynamic batching (ROLL).",
    ),
    native(
        "dfx_dynamic_batch_tokens", "tokens", ("which", "stage"),
        "Tokens before and after dynamic batching.",
    ),
    native(
        "dfx_rank_comm_seconds", "seconds", ("op",),
        "Time in communication per step, as the framework reports it, mean over ranks.",
    ),
    native(
        "dfx_gradient_syncs", "", (),
        "Gradient collectives per step and rank, as the framework counts them.",
    ),
    native(
        "dfx_moe_expert_imbalance", "", ("stat", "layer"),
        "Expert load x number of experts - 1.",
    ),
    native(
        "dfx_moe_routed_assignments", "", ("which",),
        "Assignments of tokens to experts that the rollout reported.",
    ),
    native(
        "dfx_moe_routing_confidence", "", ("stat",),
        "Confidence of the router over tokens.",
    ),
)
# fmt: on
