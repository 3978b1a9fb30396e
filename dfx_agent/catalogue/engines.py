"""Rollout engines (vLLM, SGLang) of this node: what each replica says of itself, never averaged."""

from dfx_agent.catalogue.spec import PER_NODE, Kind, Metric
from dfx_agent.snapshot import EngineFacts

PREFIX = "dfx_engine_"
# labels that every series of an engine carries
PER_ENGINE = (*PER_NODE, "replica", "dp_rank")

# name, unit, meaning; the names that the engines report are in engines/names/*.yaml
_GAUGES = (
    ("running_requests", "", "Requests that the engine works on now."),
    ("waiting_requests", "", "Requests that wait in the engine's queue."),
    ("paused_requests", "", "Requests that are paused while weights are updated (SGLang)."),
    ("kv_cache_usage_ratio", "ratio", "Share of the KV cache that is in use."),
    ("prefix_cache_hit_ratio", "ratio",
     "Share of the prompt found in the prefix cache, where the engine itself says it."),
    ("reported_tokens_per_second", "", "Generated tokens per second as the engine says it."),
    ("spec_accept_ratio", "ratio",
     "Share of the drafted tokens that is accepted, where the engine itself says it."),
    ("sleep_operations", "", "Sleep and wake operations that are under way (vLLM)."),
    ("weight_updates", "", "Operations of a weight update that are under way (vLLM)."),
)  # fmt: skip
_COUNTERS = (
    ("preemptions", "", "Requests taken off the engine for want of KV cache (SGLang: retracted)."),
    ("finished_requests", "", "Requests that ended, whatever the reason."),
    ("aborted_requests", "", "Requests that were given up before their end."),
    ("rejected_requests", "", "Requests that the engine did not take."),
    ("corrupted_requests", "", "Requests with NaN in their logits, where vLLM looks for them."),
    ("prompt_tokens", "tokens", "Tokens of prompts."),
    ("cached_prompt_tokens", "tokens", "Tokens of prompts that were found in the prefix cache."),
    ("generation_tokens", "tokens", "Generated tokens."),
    ("prefix_cache_queries", "", "Tokens (older vLLM: blocks) looked up in the prefix cache."),
    ("prefix_cache_hits", "", "Tokens (older vLLM: blocks) found in the prefix cache."),
    ("spec_draft_tokens", "tokens", "Tokens drafted by speculative decoding."),
    ("spec_accepted_tokens", "tokens", "Drafted tokens that were accepted."),
    ("idle_seconds", "seconds", "Time in which the scheduler had nothing to do (SGLang)."),
)  # fmt: skip
_HISTOGRAMS = (
    ("time_to_first_token_seconds", "seconds", "From a request's arrival to its first token."),
    ("inter_token_latency_seconds", "seconds", "Between two tokens of a request."),
    ("time_per_output_token_seconds", "seconds",
     "Mean time of a request per token after its first."),
    ("queue_time_seconds", "seconds", "Time of a request in the engine's queue."),
    ("prefill_time_seconds", "seconds", "Time of a request in prefill."),
    ("decode_time_seconds", "seconds", "Time of a request in decode."),
    ("e2e_latency_seconds", "seconds", "From a request's arrival to its end."),
    ("sleep_seconds", "seconds", "Duration of putting the engine to sleep (vLLM)."),
    ("wake_seconds", "seconds", "Duration of waking the engine up (vLLM)."),
    ("weight_update_seconds", "seconds", "Duration of one operation of a weight update (vLLM)."),
    ("dp_sync_wait_seconds", "seconds", "Wait of a data parallel rank for the others (SGLang)."),
    ("expert_balance", "", "Mean load of the experts / the highest, of each forward (SGLang)."),
)  # fmt: skip
COUNTERS = frozenset(name for name, _, _ in _COUNTERS)


def _metrics(kind: Kind, rows: tuple[tuple[str, str, str], ...], held: str) -> tuple[Metric, ...]:
    """``held``: the field of EngineFacts with their values."""

    def metric(name: str, unit: str, meaning: str) -> Metric:
        return Metric(
            PREFIX + name, kind, unit, PER_ENGINE, meaning, "engine",
            subject="engine", value=lambda engine: getattr(engine, held).get(name),
        )  # fmt: skip

    return tuple(metric(*row) for row in rows)


def _rates(engine: EngineFacts) -> float | None:
    return engine.rates.get("generation_tokens")


INFO = Metric(
    "dfx_engine", "info", "",
    (*PER_ENGINE, "role", "engine", "address", "worker", "model", "pd"),
    "A rollout engine that this agent reads; pd is prefill or decode where they are apart.",
    "engine",
)  # fmt: skip
UP = Metric(
    "dfx_engine_up", "gauge", "", PER_ENGINE,
    "1 while the engine's /metrics are read; 0 while it is awaited, slow, garbage or gone.",
    "engine", subject="engine", value=lambda engine: float(engine.state == "up"),
)  # fmt: skip
STATE = Metric(
    "dfx_engine_state", "gauge", "", (*PER_ENGINE, "state"),
    "1 for the state the engine is in: awaited (never answered yet), up, slow (no whole answer in "
    "time), garbage (an answer that says nothing), gone.",
    "engine", subject="engine", value=lambda engine: {(engine.state,): 1.0},
)  # fmt: skip
BUSY_RATIO = Metric(
    "dfx_engine_busy_ratio", "gauge", "ratio", PER_ENGINE,
    "Share of the last 60 s in which requests ran: from the scheduler's idle time if the engine "
    "reports it, else from the readings.",
    "engine", subject="engine", value=lambda engine: engine.busy_ratio,
)  # fmt: skip
BUSY_SECONDS = Metric(
    "dfx_engine_busy_seconds", "counter", "seconds", PER_ENGINE,
    "Time in which requests ran, since the engine was first read.",
    "engine", subject="engine", value=lambda engine: engine.busy_seconds,
)  # fmt: skip
OBSERVED_SECONDS = Metric(
    "dfx_engine_observed_seconds", "counter", "seconds", PER_ENGINE,
    "Time for which the agent knows whether requests ran.",
    "engine", subject="engine", value=lambda engine: engine.observed_seconds,
)  # fmt: skip
TOKENS_RATE = Metric(
    "dfx_engine_tokens_per_second", "gauge", "", PER_ENGINE,
    "Generated tokens per second over the last 60 s.",
    "engine", subject="engine", value=_rates,
)  # fmt: skip
AWAKE = Metric(
    "dfx_engine_sleep_state", "gauge", "", (*PER_ENGINE, "state"),
    "1 for the sleep state the engine is in: awake, weights_offloaded, discard_all (vLLM).",
    "engine", subject="engine",
    value=lambda engine: {(engine.sleep_state,): 1.0} if engine.sleep_state else None,
)  # fmt: skip
KV_CACHE_PEAK = Metric(
    "dfx_engine_kv_cache_peak_ratio", "gauge", "ratio", PER_ENGINE,
    "Largest share of the KV cache in use that the engine reported since it was first read; peaks "
    "between two readings are not seen.",
    "engine", subject="engine", value=lambda engine: engine.kv_cache_peak_ratio,
)  # fmt: skip
WEIGHT_LOAD = Metric(
    "dfx_engine_weight_load_seconds", "gauge", "seconds", (*PER_ENGINE, "source"),
    "Duration of the latest load of weights, by source: disk, distributed, tensor, ipc (SGLang).",
    "engine", subject="engine", value=lambda engine: engine.weight_load_seconds,
)  # fmt: skip
_REPORTED = (
    *_metrics("gauge", _GAUGES, "gauges"),
    *_metrics("counter", _COUNTERS, "totals"),
    *_metrics("histogram", _HISTOGRAMS, "histograms"),
)
RESTARTS = Metric(
    "dfx_engine_restarts", "counter", "", PER_ENGINE,
    "Observed restarts of the engine: its counters restarted at 0.",
    "engine", subject="engine", value=lambda engine: engine.num_restarts,
)  # fmt: skip
FAILED_READINGS = Metric(
    "dfx_engine_failed_readings", "counter", "", PER_ENGINE,
    "Readings of the engine's /metrics that brought nothing.",
    "engine", subject="engine", value=lambda engine: engine.num_failed_readings,
)  # fmt: skip
UNKNOWN_NAMES = Metric(
    "dfx_engine_unknown_names", "gauge", "", PER_ENGINE,
    "Metrics with the engine's prefix that this agent does not support; the page lists them.",
    "engine", subject="engine", value=lambda engine: engine.num_unknown_names,
)  # fmt: skip
