"""The list of metrics that RL post-training is observed by, as rows of one page of the docs."""

from __future__ import annotations

from dataclasses import dataclass

REASONS = {
    "a": "The framework does not report the value, and no function that the guest can read has it.",
    "b": "A general trainer: it has no reinforcement learning.",
    "c": "Robot control: there are no tokens and no rollout engine.",
    "d": "There is no adapter. Only its trackers and logs are read.",
    "e": "The framework has no such stage, or no function of its own for it.",
    "f": "The adapter does not record batches of this framework.",
    "g": "The framework has no critic, or does not report it.",
    "h": "The framework does not generate asynchronously, or does not report versions.",
}


@dataclass(frozen=True)
class Quantity:
    """One row of the page."""

    group: str
    name: str
    metrics: tuple[str, ...]
    """Names in the catalogue, the measured ones first."""
    by: str = ""
    """Who measures it: "process" (any torch process under the agent), "engine" (vLLM, SGLang), or
    words that an adapter which records it contains. "" if only frameworks report it."""
    stage: str = ""
    """Only entries of the name map with this label count."""
    reason: str = "a"
    needs_rl: bool = True
    needs_text: bool = False


def _of_process(group: str, name: str, *metrics: str) -> Quantity:
    return Quantity(group, name, metrics, "process", needs_rl=False)


def _relayed(group: str, name: str, *metrics: str, reason: str = "a") -> Quantity:
    return Quantity(group, name, metrics, reason=reason)


def _text(group: str, name: str, *metrics: str, by: str = "", reason: str = "a") -> Quantity:
    return Quantity(group, name, metrics, by, reason=reason, needs_text=True)


def _stage(name: str) -> Quantity:
    metrics = "dfx_rank_stage_active_seconds", "dfx_stage_seconds"
    is_of_engines = name == "rollout"
    return Quantity("Time by stage", name, metrics, name, name, "e", needs_text=is_of_engines)


_STABILITY, _SPEED, _MEMORY = "Correctness and stability", "Performance", "Memory"
_BALANCE, _DATA, _ROLLOUT = "Load balance", "Data quality", "Rollout and reward"
_STAGES = (
    "rollout", "reward", "old_logprob", "ref_logprob", "values", "advantage", "actor_update",
    "critic_update", "weight_sync", "checkpoint", "validation", "offload",
)  # fmt: skip

QUANTITIES = (
    _of_process(_STABILITY, "loss", "dfx_loss", "dfx_actor_loss"),
    _of_process(_STABILITY, "gradient norm", "dfx_grad_norm", "dfx_actor_grad_norm"),
    _of_process(_STABILITY, "non-finite gradients", "dfx_nonfinite_gradients"),
    _of_process(_STABILITY, "skipped updates", "dfx_skipped_updates"),
    _of_process(_STABILITY, "learning rate", "dfx_learning_rate"),
    _relayed(_STABILITY, "entropy", "dfx_actor_entropy_nats"),
    _relayed(
        _STABILITY, "KL of the update", "dfx_policy_kl_k1_nats", "dfx_policy_kl_k2_nats"
    ),
    _relayed(_STABILITY, "KL to the reference", "dfx_ref_kl_nats"),
    _relayed(_STABILITY, "clip fraction", "dfx_clip_fraction"),
    _relayed(_STABILITY, "policy ratio", "dfx_policy_ratio"),
    _relayed(_STABILITY, "reward or score", "dfx_reward", "dfx_score"),
    _relayed(_STABILITY, "advantages", "dfx_advantage"),
    _relayed(_STABILITY, "loss of the critic", "dfx_critic_loss", reason="g"),
    _relayed(
        _STABILITY, "values of the critic", "dfx_value", "dfx_value_explained_variance",
        "dfx_value_clip_fraction", reason="g",
    ),
    _relayed(_STABILITY, "validation scores", "dfx_val_score"),
    _text(
        _STABILITY, "rollout against training policy", "dfx_mismatch_kl_k1_nats",
        "dfx_mismatch_kl_k3_nats", "dfx_rollout_train_logp_absdiff_nats",
        "dfx_rollout_train_prob_absdiff",
    ),
    _text(_STABILITY, "importance weights", "dfx_is_weight", "dfx_is_weight_clip_ratio"),
    _relayed(_STABILITY, "policy lag", "dfx_policy_lag_versions", reason="h"),
    _of_process(_SPEED, "step time", "dfx_rank_step_seconds", "dfx_step_seconds"),
    _of_process(_SPEED, "waiting for other ranks", "dfx_rank_wait_seconds"),
    _of_process(_SPEED, "samples per second", "dfx_samples_per_second"),
    _of_process(
        _SPEED, "tokens per second", "dfx_pipeline_tokens_per_second", "dfx_tokens_per_second",
        "dfx_tokens_per_second_per_gpu",
    ),
    _of_process(_SPEED, "MFU", "dfx_rank_mfu_ratio", "dfx_mfu_ratio"),
    _of_process(_SPEED, "SM activity", "dfx_sm_active_ratio"),
    _of_process(_SPEED, "pipeline bubble", "dfx_pipeline_bubble_ratio"),
    _of_process(
        _SPEED, "lag of event loops", "dfx_asyncio_lag_seconds", "dfx_event_loop_lag_seconds"
    ),
    *map(_stage, _STAGES),
    _of_process(
        _MEMORY, "allocated and reserved", "dfx_gpu_mem_allocated_bytes",
        "dfx_gpu_mem_reserved_bytes", "dfx_gpu_mem_peak_allocated_bytes",
        "dfx_gpu_mem_peak_reserved_bytes",
    ),
    _of_process(_MEMORY, "fragmentation", "dfx_gpu_mem_fragmentation_ratio"),
    _of_process(_MEMORY, "peak by stage", "dfx_gpu_mem_stage_peak_bytes"),
    _of_process(
        _MEMORY, "communication buffers (estimate)", "dfx_gpu_mem_communication_estimate_bytes"
    ),
    _of_process(
        _MEMORY, "host memory", "dfx_host_memory_resident_bytes", "dfx_process_memory_bytes"
    ),
    _text(
        _MEMORY, "KV cache", "dfx_engine_kv_cache_usage_ratio", "dfx_kv_cache_usage_ratio",
        by="engine",
    ),
    _of_process(_BALANCE, "time by rank", "dfx_rank_active_seconds"),
    _of_process(_BALANCE, "straggler", "dfx_straggler_lost_seconds"),
    _of_process(
        _BALANCE, "imbalance of tokens", "dfx_step_tokens_imbalance_ratio", "dfx_dp_tokens"
    ),
    _text(
        _BALANCE, "prompt and response tokens by rank", "dfx_rank_tokens", by="tokens()",
        reason="f",
    ),
    _text(_BALANCE, "balance of experts", "dfx_moe_expert_imbalance"),
    Quantity(
        _DATA, "shape ledger: shapes, mask, NaN", (
            "dfx_ledger_mask_ratio", "dfx_ledger_nonfinite_samples", "dfx_ledger_mismatches",
        ), "observe() observe_parts() ledger()", reason="f",
    ),
    Quantity(
        _DATA, "distribution of scores", ("dfx_sample_score",),
        "observe() observe_parts() ledger()", reason="f",
    ),
    _text(
        _DATA, "tokens per micro-batch of log-probs", "dfx_micro_batch_tokens",
        "dfx_dynamic_batch_tokens", by="pipeline/micro_batch_tokens/",
    ),
    _text(_DATA, "prompt length", "dfx_prompt_length_tokens"),
    _text(_DATA, "response length", "dfx_response_length_tokens"),
    _text(_DATA, "cut responses", "dfx_response_clip_ratio"),
    _text(_DATA, "repetition", "dfx_repetition_ratio"),
    _relayed(
        _DATA, "groups without a difference", "dfx_group_zero_std_ratio",
        "dfx_group_zero_std_groups",
    ),
    _text(_DATA, "filtered groups", "dfx_filtered_groups", "dfx_filter_pass_ratio"),
    _relayed(_DATA, "terms of the reward", "dfx_reward_term"),
    _text(
        _ROLLOUT, "time to first token", "dfx_engine_time_to_first_token_seconds",
        "dfx_ttft_seconds", by="engine",
    ),
    _text(
        _ROLLOUT, "time per output token", "dfx_engine_time_per_output_token_seconds",
        "dfx_tpot_seconds", by="engine",
    ),
    _text(
        _ROLLOUT, "prefix cache", "dfx_engine_prefix_cache_hit_ratio",
        "dfx_prefix_cache_hit_ratio", by="engine",
    ),
    _text(
        _ROLLOUT, "latency of a request", "dfx_engine_e2e_latency_seconds",
        "dfx_request_latency_seconds", by="engine",
    ),
    _text(
        _ROLLOUT, "preemptions", "dfx_engine_preemptions", "dfx_preemptions", by="engine"
    ),
    _text(
        _ROLLOUT, "aborted or failed", "dfx_engine_aborted_requests", "dfx_aborted_ratio",
        "dfx_step_rollout_failures", by="engine",
    ),
    _relayed(_ROLLOUT, "depth of queues", "dfx_queue_depth", reason="h"),
    _text(_ROLLOUT, "turns and tools", "dfx_turns", "dfx_tool_calls", "dfx_tool_seconds"),
    _text(
        _ROLLOUT, "partial rollouts", "dfx_partial_rollout_ratio",
        by="pipeline/partial pipeline/partial/ratio", reason="h",
    ),
    _text(_ROLLOUT, "time to score a sample", "dfx_reward_seconds"),
)  # fmt: skip
