"""Panels of rollout engines: each replica by itself, since a mean would hide the bad one."""

from __future__ import annotations

from typing import Any

from dashboards.common import dashed, lines, listed, prop, query
from dashboards.promql import buckets, by, of_run, rate
from dfx_agent.catalogue.engines import BUSY_RATIO, PREFIX, TOKENS_RATE, UP
from dfx_agent.catalogue.spec import Metric, by_name

EACH = "replica, dp_rank"
REPLICA = "{{replica}} {{dp_rank}}"


def replica_variable() -> Any:
    return listed("replica", "Replica", f"label_values({of_run(UP)}, replica)").multi(True)


def of_replicas(metric: Metric, **where: str) -> str:
    """Of the replicas that the reader chose."""
    return of_run(metric, replica="~$replica", **where)


def _engine_metric(name: str) -> Metric:
    return by_name()[PREFIX + name]


def _by_replica(metric: Metric, **where: str) -> str:
    return by(EACH, "max", of_replicas(metric, **where))


def requests() -> Any:
    panel = lines(
        "Requests of each replica",
        "Solid: requests that run; dashed: requests that wait in the engine's queue. Replicas that "
        "share the load look the same. One whose queue grows while the others are empty is slow, "
        "or the router does not balance: look at its latency on the right, then at its device.",
        "none",
    )
    panel.with_target(query(_by_replica(_engine_metric("running_requests")), f"running {REPLICA}"))
    panel.with_target(
        query(_by_replica(_engine_metric("waiting_requests")), f"waiting {REPLICA}", "B")
    )
    panel.override_by_regexp("waiting .*", dashed())
    return panel.min(0).fill_opacity(0)


def kv_cache() -> Any:
    panel = lines(
        "KV cache in use",
        "Share of each replica's cache that holds running requests. Up to 90 % is good use. At "
        "100 % requests wait or are preempted and computed again: fewer requests in flight, or "
        "more memory for the engine.",
        "percentunit",
    )
    panel.with_target(query(_by_replica(_engine_metric("kv_cache_usage_ratio")), REPLICA))
    return panel.min(0).max(1).fill_opacity(0)


def busy() -> Any:
    panel = lines(
        "Busy",
        "Share of the last 60 s in which a replica had requests to work on. All near 100 %: the "
        "rollout holds the pipeline up, add replicas. All low while the learner waits: something "
        "before them does (tools, an event loop, a limit on requests). Dashed: what the framework "
        "says of its rollout side; where both contradict, believe the engines.",
        "percentunit",
    )
    panel.with_target(query(_by_replica(BUSY_RATIO), REPLICA))
    idle = by("side", "max", of_run(by_name()["dfx_pipeline_idle_ratio"], side="~rollout|infer.*"))
    panel.with_target(query(f"1 - {idle}", "{{side}}, as the framework says", "B"))
    panel.override_by_regexp(".*framework says", dashed())
    return panel.min(0).max(1).fill_opacity(0)


def tokens() -> Any:
    panel = lines(
        "Tokens per second of each replica",
        "Generated tokens. Lines that lie on each other are normal; one far below at the same "
        "number of running requests is a slow replica: clocks, a neighbour on its node, other "
        "settings.",
        "short",
    )
    return panel.with_target(query(_by_replica(TOKENS_RATE), REPLICA)).min(0).fill_opacity(0)


def _latency(title: str, about: str, name: str) -> Any:
    panel = lines(title, about, "s")
    observed = by(f"{EACH}, le", "sum", rate(buckets(of_replicas(_engine_metric(name)))))
    for ref, quantile, words in (("A", 0.5, "p50"), ("B", 0.99, "p99")):
        panel.with_target(
            query(f"histogram_quantile({quantile}, {observed})", f"{words} {REPLICA}", ref)
        )
    panel.override_by_regexp("p99 .*", [*dashed(), prop("custom.lineWidth", 1)])
    return panel.min(0).fill_opacity(0)


def first_token() -> Any:
    return _latency(
        "Time to first token",
        "From a request's arrival to its first token; dashed: the slowest 1 %. It holds the time "
        "in the queue: a rise with a queue is load, a rise without one is prefill (long prompts, a "
        "cold prefix cache).",
        "time_to_first_token_seconds",
    )


def between_tokens() -> Any:
    return _latency(
        "Time between tokens",
        "Between two tokens of a request; dashed: the slowest 1 %. It grows with the batch and "
        "the length. A replica several times above the others is slow by itself: the alert "
        "DfxEngineDegraded names it.",
        "inter_token_latency_seconds",
    )


def whole_request() -> Any:
    return _latency(
        "A whole request",
        "From a request's arrival to its end; dashed: the slowest 1 %. It grows with the length of "
        "the answers; at the same length a rise is queueing (see the requests) or a slow replica.",
        "e2e_latency_seconds",
    )


def read_and_written() -> Any:
    panel = lines(
        "Tokens read (prefill) and written (decode) per second",
        "All chosen replicas, by the engines' own counters. Prompt tokens from the prefix cache "
        "are among them. Many read and few written: long prompts, or short answers.",
        "short",
    )
    parts = {"prompts": "prompt_tokens", "generated": "generation_tokens"}
    for ref, (name, metric) in zip("AB", parts.items(), strict=True):
        panel.with_target(query(f"sum({rate(of_replicas(_engine_metric(metric)))})", name, ref))
    return panel.min(0).fill_opacity(0)


def preemptions() -> Any:
    panel = lines(
        "Preemptions per second",
        "Requests taken off an engine because its KV cache was full; their tokens are computed "
        "again. 0 is normal. Above it: fewer requests in flight, or more memory for the cache.",
        "short",
    )
    taken_off = by(EACH, "sum", rate(of_replicas(_engine_metric("preemptions"))))
    return panel.with_target(query(taken_off, REPLICA)).min(0).fill_opacity(0)
