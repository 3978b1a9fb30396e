"""``/metrics`` of a rollout server in the names, labels and units of vLLM 0.33."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MODEL_NAME = "tiny"
_LABELS = {"model_name": MODEL_NAME, "engine": "0"}
_LATENCY_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_REQUEST_BUCKETS = (0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 40.0)
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


class EngineMetrics:
    """The metrics of one engine, in their own registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.running = self._gauge("num_requests_running", "Requests in the running batch.")
        self.waiting = self._gauge("num_requests_waiting", "Requests that wait for a batch.")
        self.kv_cache_usage = self._gauge("kv_cache_usage_perc", "KV cache in use, 0 to 1.")
        self._preemptions = self._counter("num_preemptions", "Requests preempted.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._queue_seconds = self._histogram("request_queue_time_seconds", _REQUEST_BUCKETS)
        self._first_token = self._histogram("time_to_first_token_seconds", _LATENCY_BUCKETS)
        self._next_token = self._histogram("inter_token_latency_seconds", _LATENCY_BUCKETS)
        self._request_seconds = self._histogram("e2e_request_latency_seconds", _REQUEST_BUCKETS)
        self._ended = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            [*_LABELS, "finished_reason"],
            registry=self._registry,
        )
        for reason in ("stop", "length", "abort"):
            self._ended.labels(**_LABELS, finished_reason=reason)
        sleep = Gauge(
            "vllm:engine_sleep_state",
            "1 for the state that the engine is in.",
            [*_LABELS, "sleep_state"],
            registry=self._registry,
        )
        for state in _SLEEP_STATES:
            sleep.labels(**_LABELS, sleep_state=state).set(state == "awake")

    def begin(self, queue_seconds: float, num_prompt_tokens: int) -> None:
        """Count a request that entered a batch."""
        self._queue_seconds.observe(queue_seconds)
        self._prompt_tokens.inc(num_prompt_tokens)

    def token(self, now: float, arrived_seconds: float, last_token_seconds: float) -> None:
        """Count a token. ``last_token_seconds``: time of the request's previous token, or 0."""
        self._generation_tokens.inc()
        if last_token_seconds:
            self._next_token.observe(now - last_token_seconds)
        else:
            self._first_token.observe(now - arrived_seconds)

    def end(self, request_seconds: float, *, is_finished: bool) -> None:
        self._request_seconds.observe(request_seconds)
        reason = "stop" if is_finished else "length"
        self._ended.labels(**_LABELS, finished_reason=reason).inc()

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        family = Gauge(f"vllm:{name}", meaning, [*_LABELS], registry=self._registry)
        return family.labels(**_LABELS)

    def _counter(self, name: str, meaning: str) -> Counter:
        family = Counter(f"vllm:{name}", meaning, [*_LABELS], registry=self._registry)
        return family.labels(**_LABELS)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(
            f"vllm:{name}", "Seconds.", [*_LABELS], registry=self._registry, buckets=buckets
        )
        return family.labels(**_LABELS)
