"""The inference side of a step: tokens, requests, latency, failures."""

from dfx_agent.catalogue.native.signal_sources import FAILURES, is_timeout
from dfx_agent.catalogue.spec import PER_NODE, Metric, native
from dfx_agent.snapshot import RunRow, ScalarRow

_PRIME_RL = (
    "prime-rl sends it on its main branch (559b447), in no release. Measured from the engine "
    "itself:"
)
# what the rollout returned, before the trainer drops samples; else what is trained
_SAMPLES = ("dfx_rollouter_samples", "dfx_step_samples")


def _timeout_ratio(run: RunRow) -> float | None:
    """None if no failures were reported, or the number of samples is unknown."""
    failures = [row for row in run.scalars if row.metric == FAILURES and _has_only(row, "why")]
    reported = (row for name in _SAMPLES for row in run.scalars if row.metric == name)
    samples = next((row for row in reported if row.moments.count and _has_only(row, "")), None)
    if samples is None or not failures:
        return None
    of_step = [row for row in failures if row.step == samples.step and row.moments.count]
    num_failed = sum(row.moments.mean for row in of_step)
    num_requests = samples.moments.mean + num_failed
    timed_out = (row for row in of_step if is_timeout(row.labels.get("why", "")))
    return sum(row.moments.mean for row in timed_out) / num_requests if num_requests > 0 else None


def _has_only(row: ScalarRow, label: str) -> bool:
    """Whether it is of the whole run: no other label, such as an environment, has a value."""
    return not any(value for name, value in row.labels.items() if name != label)


TIMEOUT_RATIO = Metric(
    "dfx_rollout_timeout_ratio", "gauge", "ratio", PER_NODE,
    "Requests of the step that failed by a timeout / samples of the step and failed requests: "
    "dfx_step_rollout_failures with a reason such as timeout or ReadTimeout. Absent if the job "
    "reports no failures.", "derived",
    subject="run", value=_timeout_ratio,
)  # fmt: skip

# fmt: off
_NATIVE = (
    native(
        "dfx_prefill_tokens", "tokens", ("engine", "agg"),
        "Prompt tokens the inference engine processed.", kind="counter",
        upstream=f"{_PRIME_RL} dfx_engine_prompt_tokens_total.",
    ),
    native(
        "dfx_decode_tokens", "tokens", ("engine", "agg"),
        "Tokens the inference engine generated.", kind="counter",
        upstream=f"{_PRIME_RL} dfx_engine_generation_tokens_total.",
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
        upstream=f"{_PRIME_RL} dfx_engine_preemptions_total.",
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
