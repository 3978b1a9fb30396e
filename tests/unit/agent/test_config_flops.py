"""FLOPs and parameters from a config.json alone, against what is published of real models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dfx_agent.agent.config import load
from dfx_agent.agent.config_flops import UnknownConfigError, read
from dfx_agent.agent.model_configs import of_stage
from dfx_agent.base.errors import ConfigError

# as their config.json have them
LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    "attention_bias": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_25_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
    "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    "sliding_window": 131072, "use_sliding_window": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "head_dim": 128, "intermediate_size": 3072, "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "vocab_size": 151936,
    "tie_word_embeddings": True, "attention_bias": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "vocab_size": 151936, "tie_word_embeddings": False,
    "attention_bias": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_attention_heads": 128,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_experts_per_tok": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "attention_bias": False,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL_8X7B: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_3_8B, 8_030_261_248),
        (QWEN_25_7B, 7_615_616_512),
        (QWEN_3_06B, 596_049_920),
        (QWEN_3_30B_A3B, 30_532_122_624),
        (MIXTRAL_8X7B, 46_702_792_704),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_parameters_are_those_of_the_published_checkpoint(config: Any, parameters: int) -> None:
    flops = read(config)
    assert flops.num_parameters == flops.num_trained == parameters
    assert (flops.name, flops.dtype) == (config["architectures"][0], "bfloat16")


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [(QWEN_3_30B_A3B, 30.5e9, 3.3e9), (DEEPSEEK_V3, 671e9, 37e9), (MIXTRAL_8X7B, 46.7e9, 12.9e9)],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_of_experts_a_token_meets_as_many_as_their_makers_say(
    config: Any, total: float, active: float
) -> None:
    flops = read(config)
    assert flops.num_parameters == pytest.approx(total, rel=0.01)
    assert flops.num_active == pytest.approx(active, rel=0.02)


def test_the_flops_of_a_token_are_prime_rl_s_own() -> None:
    """Its test of Qwen3-0.6B: 3,928,227,840 for a token of a row of 512, forward and backward."""
    flops, length = read(QWEN_3_06B), 512
    assert flops.forward_of_token == 2 * 595_984_384
    of_token = flops.forward(1, length) + flops.backward(1, length)
    assert of_token == 3_928_227_840
    assert flops.backward(1, length) == 2 * flops.forward(1, length)


def test_fewer_heads_for_keys_cost_less_and_their_attention_does_not() -> None:
    few, many = read(LLAMA_3_8B), read({**LLAMA_3_8B, "num_key_value_heads": 32})
    assert many.forward_of_token - few.forward_of_token == 32 * 2 * 2 * 4096 * 24 * 128
    assert many.forward_of_pair == few.forward_of_pair == 32 * 2 * 2 * 4096


def test_lora_trains_the_small_ones_and_goes_back_through_all() -> None:
    whole = read(LLAMA_3_8B)
    lora = read(LLAMA_3_8B, {"r": 16, "target_modules": ["q_proj", "v_proj"]})
    small = 32 * 16 * ((4096 + 4096) + (4096 + 1024))
    assert lora.num_trained == small == 6_815_744, "as PEFT prints it"
    assert lora.num_parameters == whole.num_parameters + small
    assert lora.forward_of_token == whole.forward_of_token + 2 * small
    first = 2 * 4096 * (4096 + 2 * 1024) + 2 * 2 * 4096 * 16
    assert lora.backward_of_token == whole.forward_of_token + 2 * 2 * small - first
    assert lora.backward_of_pair == whole.backward_of_pair
    above = read(LLAMA_3_8B, {"r": 16, "target_modules": ["up_proj"]})
    assert above.backward_of_pair == whole.backward_of_pair * 31 / 32


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "mamba"}, "the matrices of mamba are unknown"),
        ({"model_type": None}, "the matrices of None are unknown"),
        ({"hidden_size": None}, "it lacks 'hidden_size'"),
        ({"num_hidden_layers": 0}, "its num_hidden_layers is '0'"),
        ({"num_hidden_layers": 10**9}, "its num_hidden_layers is '1000000000'"),
        ({"hidden_size": 10**30}, "its hidden_size is '1000"),
        ({"num_key_value_heads": 5}, "do not divide"),
        ({"architectures": ["LlamaForTokenClassification"]}, "the head of LlamaForToken"),
        ({"architectures": {"a": 1}, "num_local_experts": "8"}, "its num_local_experts is '8'"),
        ({"vision_config": {"hidden_size": 8}}, "more than a model of text"),
        ({"torch_dtype": ["bfloat16"]}, "its dtype is"),
        ({"torch_dtype": None}, "it lacks a dtype"),
    ],
    ids=str,
)
def test_what_a_configuration_does_not_say_is_named(change: Any, text: str) -> None:
    with pytest.raises(UnknownConfigError, match=text):
        read({**LLAMA_3_8B, **change})


def test_the_number_of_experts_has_more_than_one_name() -> None:
    """transformers 5 writes num_local_experts for all."""
    renamed = {k: v for k, v in QWEN_3_30B_A3B.items() if k != "num_experts"}
    assert read({**renamed, "num_local_experts": 128}) == read(QWEN_3_30B_A3B)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_experts": "128"}, "its num_experts is '128'"),
        ({"num_experts": None}, "it lacks 'num_experts'"),
        ({"num_experts_per_tok": 129}, "its num_experts_per_tok is '129'"),
        ({"decoder_sparse_step": "2"}, "its decoder_sparse_step is '2'"),
        ({"mlp_only_layers": ["0"]}, "its mlp_only_layers are"),
        ({"head_dim": None}, "it lacks 'head_dim'"),
        ({"num_key_value_heads": None}, "it lacks 'num_key_value_heads'"),
    ],
    ids=str,
)
def test_experts_with_odd_numbers_are_no_dense_model(change: Any, text: str) -> None:
    with pytest.raises(UnknownConfigError, match=text):
        read({**QWEN_3_30B_A3B, **change})


@pytest.mark.parametrize(
    ("lora", "text"),
    [
        ({"r": 0, "target_modules": ["q_proj"]}, "no r or no target_modules"),
        ({"r": 8, "target_modules": ["wq"]}, "none of its matrices"),
        ({"r": 8, "target_modules": ".*proj"}, "is a pattern: write a list of names"),
        ({"r": 8, "target_modules": ["q_proj", "wq"]}, "none of its matrices is 'wq'"),
        ({"r": 8, "target_modules": {"q_proj": 1}}, "no list of names"),
        ({"r": 8, "target_modules": ["q_proj"], "peft_type": "IA3"}, "IA3 is not LORA"),
        ({"r": 8, "target_modules": ["q_proj"], "rank_pattern": {"q_proj": 64}}, "rank_pattern"),
        ({"r": 8, "target_modules": ["q_proj"], "layers_to_transform": [0]}, "layers_to_tr"),
        ({"r": 8, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "modules_to"),
    ],
    ids=str,
)
def test_adapters_that_say_too_little_are_refused(lora: Any, text: str) -> None:
    with pytest.raises(UnknownConfigError, match=text):
        read(LLAMA_3_8B, lora)


def folder(path: Path, **files: Any) -> str:
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        path.joinpath(f"{name}.json").write_text(json.dumps(content))
    return str(path)


def test_the_setting_is_a_file_or_folder_or_one_for_each_role(tmp_path: Path) -> None:
    llama = folder(tmp_path / "llama", config=LLAMA_3_8B)
    qwen = folder(tmp_path / "qwen", config=QWEN_25_7B)
    known = load({"directory": "/tmp"}, {"DFX_MODEL_CONFIG": llama}, None).model_config
    assert known == {"all": read(LLAMA_3_8B)}
    text = f"actor={llama}/config.json, ref={qwen}"
    known = load({"directory": "/tmp", "model_config": text}, {}, None).model_config
    assert of_stage(known, "actor", "actor_update") == read(LLAMA_3_8B)
    assert of_stage(known, "actor", "ref_logprob") == read(QWEN_25_7B)
    assert of_stage(known, "trainer", "actor_update") is None


def test_an_adapter_s_folder_says_what_is_trained(tmp_path: Path) -> None:
    base = folder(tmp_path / "llama", config=LLAMA_3_8B)
    adapter = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj", "v_proj"]}
    reported = folder(
        tmp_path / "lora", adapter_config={**adapter, "base_model_name_or_path": base}
    )
    known = load({"directory": "/tmp", "model_config": reported}, {}, None).model_config
    assert known["all"].num_trained == 6_815_744


@pytest.mark.parametrize("name", ["~nobody-of-this-name/model", "a" * 300], ids=["user", "long"])
def test_a_name_that_no_file_can_have_stops_the_agent_with_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match="model_config: cannot read"):
        load({"directory": "/tmp", "model_config": name}, {}, None)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not JSON: give a model's config.json"),
        ("[1]", "is no object: give a model's config.json"),
        ('{"model_type": "mamba"}', "the matrices of mamba are unknown"),
        (f'{{"model_type": "{"x" * (1 << 20)}"}}', "has more than 1 MiB"),
        (None, "cannot read .*: No such file"),
    ],
    ids=["half", "list", "mamba", "large", "none"],
)
def test_a_file_that_is_none_stops_the_agent_with_one_line(
    content: str | None, text: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=text) as failure:
        load({"directory": "/tmp", "model_config": str(file)}, {}, None)
    assert "\n" not in str(failure.value)
    assert str(failure.value).startswith("model_config: ")
