"""FLOPs from config.json against models as transformers builds them, without their weights."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from dfx_agent.agent.config_flops import KINDS, read  # noqa: E402 (after the visible skip)
from dfx_agent.shim.torch import model_flops  # noqa: E402

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 200, "pad_token_id": 0,
}  # fmt: skip
WIDE = {"head_dim": 32}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 20, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 48, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True, **WIDE}),
    "mistral": ("mistral", {}),
    "phi3": ("phi3", {}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 80}),
    "qwen3": ("qwen3", WIDE),
    "qwen3_moe": ("qwen3_moe", {**WIDE, **EXPERTS}),
    "qwen3_moe, every second": (
        "qwen3_moe", {**WIDE, **EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [2]}
    ),
    "deepseek_v2": ("deepseek_v2", {**LATENT, "q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", {**LATENT, "q_lora_rank": 24}),
    "gemma": ("gemma", WIDE),
    "gemma2": ("gemma2", WIDE),
    "gemma3_text": ("gemma3_text", WIDE),
}  # fmt: skip


def test_every_kind_is_here_but_the_one_that_is_built_like_another() -> None:
    assert {kind for kind, _ in MODELS.values()} == KINDS.keys() - {"kimi_k2"}


@pytest.mark.parametrize("name", MODELS)
def test_the_configuration_says_what_the_modules_say(name: str) -> None:
    kind, more = MODELS[name]
    try:
        config = transformers.AutoConfig.for_model(kind, **{**SIZES, **more})
    except ValueError:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    config.dtype = "bfloat16"
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    reported = read(json.loads(config.to_json_string(use_diff=False)))
    live = model_flops.read(model)
    assert live.reason == ""
    assert reported.num_parameters == live.num_parameters
    assert reported.num_attentions == live.num_attentions
    assert reported.forward_of_token == live.forward_of_token
    assert reported.forward_of_pair == live.forward_of_pair
    assert reported.backward_of_token == live.backward_of_token
    assert reported.backward_of_pair == live.backward_of_pair
