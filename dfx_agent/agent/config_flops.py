"""What one pass of a model multiplies, from the ``config.json`` of a Hugging Face checkpoint alone.

The same figures as the guest reads from live modules (docs/concepts/mfu.md): each matrix costs
2 x inputs x outputs for a token, each layer's attention 2 x (queries + values) for each pair of
tokens. A kind of model that is not in ``KINDS`` has none: its names may mean other matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """Properties of a ``model_type`` that its configuration does not contain.

    ``num_norms``: of each layer, as wide as the model; ``num_head_norms``: as wide as a head.
    ``has_qkv_bias``: None if ``attention_bias`` specifies it, for the output too.
    ``moe_name``: key of the width of an expert. ``is_tied``: where the configuration leaves it out.
    ``needs``: keys without which its class takes a figure of its own. ``has_experts``: their number
    is one of these, under one of its names.
    """

    num_norms: int = 2
    num_head_norms: int = 0
    has_qkv_bias: bool | None = None
    moe_name: str = "moe_intermediate_size"
    is_tied: bool = False
    needs: tuple[str, ...] = ()
    has_experts: bool = False


_KEYS, _HEAD = "num_key_value_heads", "head_dim"
_LLAMA = Kind()
_QWEN2 = Kind(has_qkv_bias=True, needs=(_KEYS,))
_QWEN3 = Kind(num_head_norms=2, needs=(_KEYS, _HEAD))
KINDS: Mapping[str, Kind] = {
    "llama": _LLAMA,
    "mistral": Kind(needs=(_KEYS,)),
    "phi3": _LLAMA,
    "mixtral": Kind(moe_name="intermediate_size", needs=(_KEYS,), has_experts=True),
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2._replace(has_experts=True),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3._replace(has_experts=True),
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
    "kimi_k2": _LLAMA,
    "gemma": Kind(is_tied=True, needs=(_KEYS, _HEAD)),
    "gemma2": Kind(num_norms=4, is_tied=True, needs=(_KEYS, _HEAD)),
    "gemma3_text": Kind(num_norms=4, num_head_norms=2, is_tied=True, needs=(_KEYS, _HEAD)),
}
# of a token, in the order in which frameworks write it down
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_MOST, _MOST_LAYERS = 1 << 24, 1 << 12  # of any size: what is larger is a slip
_CAUSAL = "ForCausalLM"  # its head is as wide as the vocabulary; that of a critic is not
# of PEFT: what changes which matrices are trained, or how wide they are
_UNKNOWN_LORA = (
    "rank_pattern", "layers_to_transform", "layer_replication", "modules_to_save",
    "exclude_modules", "target_parameters", "trainable_token_indices", "use_dora",
)  # fmt: skip
_READ_INPUT = frozenset({"q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa"})


class Matrix(NamedTuple):
    """``num``: so many alike, and a token goes through ``num_of_token`` of them."""

    name: str
    inputs: int
    outputs: int
    num: int
    num_of_token: int
    in_attention: bool = False

    @property
    def flops(self) -> float:
        return 2.0 * self.inputs * self.outputs * self.num_of_token

    @property
    def reads_input(self) -> bool:
        """Of the layer, and not what another matrix made of it."""
        return self.name in _READ_INPUT


@dataclass(frozen=True, slots=True)
class ConfigFlops:
    """FLOPs of a token and of a pair of tokens, as in the guest's ModelFlops.

    ``num_active``: parameters that one token meets, those of the embedding not counted twice.
    """

    name: str
    dtype: str
    num_parameters: int
    num_active: int
    num_trained: int
    num_attentions: int
    forward_of_token: float
    forward_of_pair: float
    backward_of_token: float
    backward_of_pair: float

    def forward(self, tokens: float, pairs: float) -> float:
        return self.forward_of_token * tokens + self.forward_of_pair * pairs

    def backward(self, tokens: float, pairs: float) -> float:
        return self.backward_of_token * tokens + self.backward_of_pair * pairs


class UnknownConfigError(Exception):
    """The configuration lacks a value, or contains a value that cannot be counted."""


def read(config: Mapping[str, Any], lora: Mapping[str, Any] | None = None) -> ConfigFlops:
    """``lora``: PEFT's ``adapter_config.json`` where only that is trained; UnknownConfigError."""
    try:
        return _Reader(config).counted(lora)
    except KeyError as error:
        raise UnknownConfigError(f"it lacks {error}") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UnknownConfigError(f"it says what nobody can count ({error})") from None


def _checked(name: str, number: Any, least: int, most: int = _MOST) -> int:
    if type(number) is not int or not least <= number <= most:
        raise UnknownConfigError(f"its {name} is {str(number)[:20]!r}")
    return number


class _Reader:
    """One look at a configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._type = str(config.get("model_type", ""))
        kind = KINDS.get(self._type)
        if kind is None:
            raise UnknownConfigError(f"the matrices of {self._type or 'no model_type'} are unknown")
        self._kind = kind
        self._name = _name_of(config.get("architectures")) or self._type
        if config.get("vision_config") or config.get("text_config"):
            raise UnknownConfigError("it describes more than a model of text")
        for key in kind.needs:
            if config.get(key) is None:
                raise KeyError(key)
        if kind.has_experts and all(config.get(name) is None for name in _EXPERTS):
            raise KeyError(_EXPERTS[0])
        self._width, self._num_layers = self._size("hidden_size"), self._size("num_hidden_layers")
        _checked("num_hidden_layers", self._num_layers, 1, _MOST_LAYERS)
        self._heads = self._size("num_attention_heads")
        self._moe_layers = sum(map(self._is_moe, range(self._num_layers)))

    def _size(self, name: str, otherwise: int | None = None) -> int:
        """A positive whole number."""
        number = self._config.get(name)
        number = otherwise if number is None else number
        if number is None:
            raise KeyError(name)
        return _checked(name, number, 1)

    def _count(self, name: str) -> int:
        """0 where it is not said."""
        return _checked(name, self._config.get(name) or 0, 0)

    def counted(self, lora: Mapping[str, Any] | None) -> ConfigFlops:
        matrices = [*self._attention(), *self._feed_forward(), self._head()]
        pair = 2.0 * self._pair_width * self._num_layers
        sizes = [(m.inputs * m.outputs, m.num, m.num_of_token) for m in matrices]
        others = self._num_other()
        shared = self._width * self._size("vocab_size") if self._is_tied else 0
        forward = sum(m.flops for m in matrices)
        found = ConfigFlops(
            name=self._name,
            dtype=self._dtype(),
            num_parameters=sum(size * num for size, num, _ in sizes) + others - shared,
            num_active=sum(size * num for size, _, num in sizes) + others - shared,
            num_trained=sum(size * num for size, num, _ in sizes) + others - shared,
            num_attentions=self._num_layers,
            forward_of_token=forward,
            forward_of_pair=pair,
            backward_of_token=2.0 * forward,
            backward_of_pair=2.0 * pair,
        )
        return found if lora is None else _with_lora(found, matrices, lora)

    def _dtype(self) -> str:
        dtype: Any = self._config.get("dtype") or self._config.get("torch_dtype")  # transformers 4
        if not dtype:
            raise UnknownConfigError("it lacks a dtype")
        if not isinstance(dtype, str):
            raise UnknownConfigError(f"its dtype is {str(dtype)[:20]!r}")
        return dtype.removeprefix("torch.")

    @property
    def _is_tied(self) -> bool:
        return bool(self._config.get("tie_word_embeddings", self._kind.is_tied))

    @property
    def _is_latent(self) -> bool:
        """Keys and values from one narrow row (MLA of DeepSeek)."""
        return self._config.get("kv_lora_rank") is not None

    @property
    def _head_width(self) -> int:
        return self._size("head_dim", self._width // self._heads)

    @property
    def _pair_width(self) -> int:
        """Queries + values of one layer."""
        if not self._is_latent:
            return 2 * self._heads * self._head_width
        return self._heads * (self._query_width + self._size("v_head_dim"))

    @property
    def _query_width(self) -> int:
        return self._size("qk_nope_head_dim") + self._size("qk_rope_head_dim")

    def _in_layers(self, name: str, inputs: int, outputs: int) -> Matrix:
        num = self._num_layers
        return Matrix(name, inputs, outputs, num, num, in_attention=True)

    def _attention(self) -> Iterator[Matrix]:
        if self._is_latent:
            yield from self._latent_attention()
            return
        queries = self._heads * self._head_width
        if self._heads % self._size(_KEYS, self._heads):
            raise UnknownConfigError(f"its {_KEYS} do not divide its num_attention_heads")
        keys = self._size(_KEYS, self._heads) * self._head_width
        yield self._in_layers("q_proj", self._width, queries)
        yield self._in_layers("k_proj", self._width, keys)
        yield self._in_layers("v_proj", self._width, keys)
        yield self._in_layers("o_proj", queries, self._width)

    def _latent_attention(self) -> Iterator[Matrix]:
        queries, values = self._heads * self._query_width, self._heads * self._size("v_head_dim")
        keys, rotated = self._size("kv_lora_rank"), self._size("qk_rope_head_dim")
        if self._config.get("q_lora_rank") is None:
            yield self._in_layers("q_proj", self._width, queries)
        else:
            narrow = self._size("q_lora_rank")
            yield self._in_layers("q_a_proj", self._width, narrow)
            yield self._in_layers("q_b_proj", narrow, queries)
        yield self._in_layers("kv_a_proj_with_mqa", self._width, keys + rotated)
        both = self._heads * self._size("qk_nope_head_dim") + values
        yield self._in_layers("kv_b_proj", keys, both)
        yield self._in_layers("o_proj", values, self._width)

    @property
    def _num_experts(self) -> int:
        """0: the model has none."""
        return next((number for number in map(self._count, _EXPERTS) if number > 1), 0)

    def _is_moe(self, layer: int) -> bool:
        config = self._config
        dense = config.get("mlp_only_layers") or []
        if not isinstance(dense, list) or any(type(number) is not int for number in dense):
            raise UnknownConfigError(f"its mlp_only_layers are {str(dense)[:20]!r}")
        if not self._num_experts or layer in dense:
            return False
        if layer < self._count("first_k_dense_replace"):
            return False
        every = self._count("moe_layer_freq") or 1
        sparse = self._count("decoder_sparse_step") or 1
        return layer % every == 0 and (layer + 1) % sparse == 0

    def _feed_forward(self) -> Iterator[Matrix]:
        num_dense, num_moe = self._num_layers - self._moe_layers, self._moe_layers
        if num_dense:
            yield from self._gated(self._size("intermediate_size"), num_dense, num_dense)
        if not num_moe:
            return
        of_token = self._size("num_experts_per_tok")
        _checked("num_experts_per_tok", of_token, 1, self._num_experts)
        width = self._size(self._kind.moe_name)
        yield Matrix("gate", self._width, self._num_experts, num_moe, num_moe)
        yield from self._gated(width, num_moe * self._num_experts, num_moe * of_token)
        shared = width * self._count("n_shared_experts")
        if self._config.get("shared_expert_intermediate_size"):  # of Qwen2: it has a gate, too
            shared = self._size("shared_expert_intermediate_size")
            yield Matrix("shared_expert_gate", self._width, 1, num_moe, num_moe)
        if shared:
            yield from self._gated(shared, num_moe, num_moe)

    def _gated(self, inner: int, num: int, of_token: int) -> Iterator[Matrix]:
        yield Matrix("gate_proj", self._width, inner, num, of_token)
        yield Matrix("up_proj", self._width, inner, num, of_token)
        yield Matrix("down_proj", inner, self._width, num, of_token)

    def _head(self) -> Matrix:
        return Matrix("lm_head", self._width, self._size("vocab_size"), 1, 1)

    def _num_other(self) -> int:
        """Parameters that nothing is multiplied with: embedding, norms, biases."""
        of_layer = self._kind.num_norms * self._width + self._num_biases()
        of_layer += self._kind.num_head_norms * self._head_width
        if self._is_latent:
            of_layer += self._size("kv_lora_rank") + self._count("q_lora_rank")
        embedding = self._size("vocab_size") * self._width
        return embedding + self._width + of_layer * self._num_layers

    def _num_biases(self) -> int:
        """Of one layer's attention."""
        if self._is_latent:
            return 0
        queries = self._heads * self._head_width
        keys = self._size("num_key_value_heads", self._heads) * self._head_width
        inputs = queries + 2 * keys
        if self._kind.has_qkv_bias is not None:
            return inputs if self._kind.has_qkv_bias else 0
        return inputs + self._width if self._config.get("attention_bias") else 0


def _with_lora(whole: ConfigFlops, matrices: list[Matrix], lora: Mapping[str, Any]) -> ConfigFlops:
    """Each frozen matrix has a gradient of its input alone, each small one both."""
    rank, targets = lora.get("r"), lora.get("target_modules")
    if type(rank) is not int or not 0 < rank <= _MOST or not targets:
        raise UnknownConfigError("adapter_config.json has no r or no target_modules")
    _check_lora(lora, {m.name for m in matrices})
    chosen = [m for m in matrices if _is_target(m.name, targets)]
    if not chosen:
        raise UnknownConfigError(f"none of its matrices is one of target_modules {targets}")
    sizes = [((m.inputs + m.outputs) * rank, m.num, m.num_of_token) for m in chosen]
    flops = sum(2.0 * size * num for size, _, num in sizes)
    # nothing is trained before the first layer: what reads its input gives no gradient to it, and
    # without a small matrix in its attention that has none at all
    attends = any(m.in_attention for m in chosen)
    spared = [m for m in matrices if m.in_attention and (m.reads_input or not attends)]
    first = sum(2.0 * m.inputs * m.outputs for m in spared)
    first += sum(2.0 * m.inputs * rank for m in chosen if m.in_attention and m.reads_input)
    num_attentions = whole.num_attentions if attends else whole.num_attentions - 1
    return replace(
        whole,
        num_parameters=whole.num_parameters + sum(size * num for size, num, _ in sizes),
        num_active=whole.num_active + sum(size * num for size, _, num in sizes),
        num_trained=sum(size * num for size, num, _ in sizes),
        forward_of_token=whole.forward_of_token + flops,
        backward_of_token=whole.forward_of_token + 2.0 * flops - first,
        backward_of_pair=whole.backward_of_pair * num_attentions / whole.num_attentions,
    )


def _name_of(architectures: Any) -> str:
    """Of the first; empty where none is said."""
    name = architectures[0] if isinstance(architectures, list) and architectures else ""
    if name and (not isinstance(name, str) or _CAUSAL not in name):
        raise UnknownConfigError(f"the head of {str(name)[:60]} is unknown")
    return str(name)


def _check_lora(lora: Mapping[str, Any], names: set[str]) -> None:
    """UnknownConfigError unless LoRA trains only low-rank matrices next to known matrices."""
    kind = str(lora.get("peft_type", "LORA"))
    if kind != "LORA":
        raise UnknownConfigError(f"its peft_type {kind} is not LORA")
    for key in _UNKNOWN_LORA:
        if lora.get(key):
            raise UnknownConfigError(f"what {key} of adapter_config.json trains is unknown")
    targets = lora.get("target_modules")
    if not isinstance(targets, (str, list)):
        raise UnknownConfigError("target_modules is no list of names")
    strange = [name for name in targets if name not in names] if type(targets) is list else []
    if strange:
        raise UnknownConfigError(
            f"none of its matrices is {str(strange[0])[:60]!r} of target_modules"
        )


def _is_target(name: str, targets: Any) -> bool:
    if targets == "all-linear":
        return name not in {"lm_head", "gate"}
    if isinstance(targets, str):
        raise UnknownConfigError("target_modules is a pattern: write a list of names")
    return name in targets
