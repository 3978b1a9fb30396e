"""The inference side of a step: tokens, requests, latency, failures."""

from dfx_agent.catalogue.spec import native

# fmt: off
METRICS = (
    native(
        "dfx_prefill_tokens", "tokens", ("engine", "agg"),
        "Prompt tokens the inference engine processed.", kind="counter",
    ),
    native(
        "dfx_decode_tokens", "tokens", ("engine", "agg"),
        "Tokens the inference engine generated.", kind="counter",
    ),
    native(
        "dfx_prefill_tokens_per_second", "", ("engine", "agg"),
        "Prompt tokens per second of the inference engine.",
    ),
    native(
        "dfx_decode_tokens_per_second", "", ("engine", "agg"),
        "Generated tokens per second of the inference engine.",
    ),
    native(
        "dfx_step_prefill_tokens", "tokens", (),
        "Prompt tokens of the step's samples.",
    ),
    native(
        "dfx_step_decode_tokens", "tokens", (),
        "Generated tokens of the step's samples.",
    ),
    native(
        "dfx_request_latency_seconds", "seconds",
        ("phase", "stat", "variant", "env", "subset", "agent", "domain"),
        "Time of one sample's generation, from request to result; phase: a part of it.",
    ),
    native(
        "dfx_ttft_seconds", "seconds", ("engine", "agg"),
        "Time to first token, relayed from the inference engine.",
    ),
    native(
        "dfx_tpot_seconds", "seconds", ("engine", "agg"),
        "Time per output token, relayed from the inference engine.",
    ),
    native(
        "dfx_inference_request_seconds", "seconds", ("engine", "phase", "agg"),
        "Mean time of the requests of the interval by phase, relayed from the inference engine.",
    ),
    native(
        "dfx_inference_detail", "", ("engine", "which", "agg"),
        "Further figures relayed from the inference engine, under its own names; :rate is per s.",
    ),
    native(
        "dfx_request_queue_seconds", "seconds", ("stat",),
        "Time a request or sample waited in a queue.",
    ),
    native(
        "dfx_engine_requests", "", ("engine", "state", "agg"),
        "Requests the inference engine runs or holds back (state).",
    ),
    native(
        "dfx_preemptions", "", ("stat", "variant"),
        "Requests preempted for lack of KV cache; -1: the engine does not report it.",
    ),
    native(
        "dfx_preemptions_per_second", "", ("engine", "agg"),
        "Requests preempted per second for lack of KV cache.",
    ),
    native(
        "dfx_slowest_sample_tokens", "tokens", ("part",),
        "Length of the sample whose generation took longest.",
    ),
    native(
        "dfx_tool_seconds", "seconds", ("stat", "variant"),
        "Time in tools and environments per trajectory.",
    ),
    native(
        "dfx_prefix_cache_hit_ratio", "ratio", ("scope", "agg"),
        "Share of prompt tokens found in the prefix cache.",
    ),
    native(
        "dfx_cached_prompt_tokens", "tokens", (),
        "Prompt tokens per sample found in the prefix cache.",
    ),
    native(
        "dfx_spec_accept_ratio", "ratio", (),
        "Share of speculated tokens that were accepted.",
    ),
    native(
        "dfx_spec_accept_length", "tokens", (),
        "Accepted tokens per speculation.",
    ),
    native(
        "dfx_step_rollout_failures", "", ("why", "env", "subset", "agent"),
        "Rollouts that failed since the last report, by reason; verl counts prompt groups.",
    ),
)
# fmt: on
