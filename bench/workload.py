"""A realistic step as the guest's public API sees it: what the agent's benches feed."""

from __future__ import annotations

from collections.abc import Iterator

import dfx_agent.shim as dfx

NUM_TURNS = 100
NUM_MICRO_BATCHES = 157

# What verl logs in a step, the first ones under names that the catalogue knows.
KEYS = (
    *("actor/entropy", "actor/ppo_kl", "actor/kl_loss", "actor/grad_norm", "actor/pg_clipfrac"),
    *("actor/pg_loss", "actor/lr", "actor/pg_clipfrac_lower", "actor/kl_coef", "critic/vf_loss"),
    *(f"critic/{key}/{stat}" for key in ("rewards", "score") for stat in ("mean", "max", "min")),
    *(f"critic/{key}/{stat}" for key in ("advantages", "returns") for stat in ("mean", "max")),
    *(f"{key}_length/{stat}" for key in ("prompt", "response") for stat in ("mean", "max", "min")),
    *("response_length/clip_ratio", "prompt_length/clip_ratio", "response/aborted_ratio"),
    *("timing_s/step", "timing_s/gen", "timing_s/reward", "timing_s/old_log_prob"),
    *("timing_s/ref", "timing_s/adv", "timing_s/update_actor", "timing_s/update_weights"),
    *("perf/total_num_tokens", "perf/throughput", "perf/mfu/actor", "perf/max_memory_gb"),
    *(f"timing_per_token_ms/{part}" for part in ("gen", "ref", "adv", "update_actor")),
    *(f"custom/metric_{i}" for i in range(13)),
)


def step_records(step: int) -> Iterator[None]:
    """Play one step; yields after each record, so that the caller may pace it."""
    dfx.set_step(step)
    yield
    yield from _rollout()
    for stage in ("reward", "old_logprob", "ref_logprob", "advantage"):
        with dfx.stage(stage):
            pass
        yield
    yield from _actor_update()
    with dfx.stage("weight_sync"):
        for kind in ("barrier", "collective"):
            with dfx.wait(kind):
                pass
            yield
    yield
    dfx.policy_version(step)
    yield
    for number, key in enumerate(KEYS):
        dfx.scalar(key, 0.5 + number + step / 1e4, step)
        yield


def _rollout() -> Iterator[None]:
    with dfx.stage("rollout"):
        for turn in range(NUM_TURNS):
            with dfx.wait("queue"):
                pass
            yield
            dfx.tokens("response", 64)
            yield
            dfx.queue("rollout_pending", NUM_TURNS - turn)
            yield
    yield
    dfx.tokens("prompt", 4096)
    yield


def _actor_update() -> Iterator[None]:
    with dfx.stage("actor_update"):
        for _ in range(NUM_MICRO_BATCHES):
            with dfx.stage("forward"):
                pass
            yield
            with dfx.stage("backward"):
                with dfx.wait("collective"):
                    pass
                yield
            yield
            with dfx.stage("optimizer"):
                pass
            yield
    yield
