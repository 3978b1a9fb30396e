"""Computes the FLOPs of a forward and a backward pass from a model's modules: per token and pair.

A matrix of (out, in) costs 2 x out x in FLOPs per token. A layer's attention costs 2 x (width of
its queries + width of its values) per pair of tokens. A backward costs the same again for the
gradient of each trained matrix, and the same again for the gradient of its input, if anything
before it is trained. torch's own FLOP counter counts the same; docs/concepts/mfu.md lists what is
excluded. Only shapes are read, no tensors.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

_QUERIES = frozenset({"q_proj", "q_b_proj", "query", "query_proj", "wq", "to_q", "q_lin"})
_FUSED = frozenset(
    {"qkv", "qkv_proj", "query_key_value", "linear_qkv", "c_attn", "Wqkv", "to_qkv", "W_pack"}
)
_OUT = frozenset(
    {"o_proj", "out_proj", "attention_out", "dense", "linear_proj", "c_proj", "wo", "to_out",
     "out_lin", "proj"}
)  # fmt: skip
# these read the input of the block around them, so nothing in the block is trained before them
_READ_INPUT = _QUERIES | _FUSED | frozenset(
    {"k_proj", "v_proj", "key", "value", "wk", "wv", "gate_proj", "up_proj", "gate_up_proj", "w1",
     "w3", "fc1", "c_fc", "linear_fc1", "feed_forward_in"}
)  # fmt: skip
# first module of a layer wherever it is defined: the input of the layer passes it first
_FIRST_NORMS = frozenset({"input_layernorm", "ln_1", "ln1", "norm1", "attention_norm"})
_EXPERTS = "experts"
_EXPERTS_OF_TOKEN = (
    "num_experts_per_tok", "top_k", "topk", "moe_top_k", "moe_topk", "moe_router_topk",
    "num_experts_per_token", "moe_k",
)  # fmt: skip
_UNCOUNTED = ("Conv1d", "Conv2d", "Conv3d", "RNN", "LSTM", "GRU")
_BASE, _ADAPTER = "base_layer", "lora_"
_LISTS = frozenset({"ModuleList", "ModuleDict", "Sequential"})
_MOST_WRAPPERS = 8
_HEAD = "lm_head"
_OF_OTHERS = "vision_config", "audio_config", "is_encoder_decoder"


class ModelFlops(NamedTuple):
    """FLOPs of one model. "token" fields are per token, "pair" fields per pair of tokens."""

    name: str
    """Class of the model."""
    num_parameters: int
    num_trained: int
    """Parameters that require gradients."""
    num_attentions: int = 0
    """Attention layers."""
    forward_of_token: float = 0.0
    forward_of_pair: float = 0.0
    backward_of_token: float = 0.0
    backward_of_pair: float = 0.0
    forward_of_head: float = 0.0
    """Part of ``forward_of_token`` in the head, which a pass may skip for some tokens."""
    backward_of_head: float = 0.0
    uncounted: tuple[str, ...] = ()
    """Classes of modules that the numbers do not include."""
    reason: str = ""
    """Why the FLOPs are unknown; "" if they are known."""


class WeightMatrix(NamedTuple):
    """A weight that tokens are multiplied with."""

    at: int
    """Position in the order of modules."""
    block: str
    """Path of the module around it."""
    name: str
    part: str
    """Which part of LoRA; "" for other matrices."""
    inputs: int
    outputs: int
    share: float
    """Part of the tokens that use it: 1.0, or less for an expert."""
    is_trained: bool

    @property
    def flops(self) -> float:
        return 2.0 * self.inputs * self.outputs * self.share


class UnknownModelError(Exception):
    """The structure of the model does not determine its FLOPs; the message is the reason."""


def core_of(module: Any) -> Any:
    """The model inside wrappers (DDP, FSDP, PEFT), which jobs also call directly."""
    for _ in range(_MOST_WRAPPERS):
        children = list(module.children())
        if len(children) != 1 or module._parameters or type(children[0]).__name__ in _LISTS:  # noqa: SLF001
            break
        if not list(children[0].children()):
            break
        module = children[0]
    return module


def read(root: Any) -> ModelFlops:
    """FLOPs of ``root`` for a batch of token ids; never raises."""
    name, sizes = type(root).__name__, list[tuple[int, bool]]()
    try:
        parameters = {id(p): p for p in root.parameters()}.values()
        sizes = [(int(p.numel()), bool(p.requires_grad)) for p in parameters]
        reason, counted = "", _ModuleReader(root).counted()
    except UnknownModelError as unknown:
        reason, counted = str(unknown), {}
    except Exception as error:  # noqa: BLE001 (a model that nobody has seen yet)
        reason, counted = f"its modules cannot be read ({type(error).__name__})", {}
    trained = sum(size for size, is_trained in sizes if is_trained)
    return ModelFlops(name, sum(size for size, _ in sizes), trained, **counted, reason=reason)


class _ModuleReader:
    """Reads the modules of one model."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._modules = dict(root.named_modules())
        self._places = {path: at for at, path in enumerate(self._modules)}
        trained = (path for path, module in self._modules.items() if _trains(module))
        self._first_trained = min(map(self._runs_at, trained), default=sys.maxsize)

    def counted(self) -> dict[str, Any]:
        """Fields of ModelFlops, as a dict."""
        self._refuse_unknown()
        matrices = [m for path in self._modules for m in self._matrices(path)]
        if not matrices:
            raise UnknownModelError("it has no matrix of a known kind")
        widths = list(self._attention_widths(matrices))
        is_below = self._first_trained
        kinds = {type(module).__name__ for module in self._modules.values()}
        return {
            "num_attentions": len(widths),
            "forward_of_token": sum(m.flops for m in matrices),
            "forward_of_pair": sum(2.0 * width for _, width in widths),
            "backward_of_token": sum(map(self._backward, matrices)),
            "forward_of_head": sum(m.flops for m in matrices if m.name == _HEAD),
            "backward_of_head": sum(self._backward(m) for m in matrices if m.name == _HEAD),
            "backward_of_pair": sum(4.0 * width for at, width in widths if is_below <= at),
            "uncounted": tuple(sorted(k for k in kinds if k.startswith(_UNCOUNTED))),
        }

    def _backward(self, matrix: WeightMatrix) -> float:
        return matrix.flops * (matrix.is_trained + self._needs_input(matrix))

    def _refuse_unknown(self) -> None:
        """Raise if the model processes more, or other things, than the tokens of a batch."""
        config = getattr(self._root, "config", None)
        for name in _OF_OTHERS:
            if getattr(config, name, None):
                raise UnknownModelError(f"{name} in its config: not all of it runs over the tokens")
        for module in self._modules.values():
            children = module._modules.values() if type(module).__name__ in _LISTS else ()  # noqa: SLF001
            if any(n > 1 and _has_parameters(one) for one, n in Counter(children).items()):
                raise UnknownModelError("a layer is in a list several times")

    def _runs_at(self, path: str) -> int:
        layer, _, name = path.rpartition(".")
        return self._places[layer if name in _FIRST_NORMS else path]

    def _needs_input(self, matrix: WeightMatrix) -> bool:
        """Whether its input needs a gradient, because something before it is trained."""
        if matrix.part == "lora_B":
            return True
        reads_input = matrix.part == "lora_A" or matrix.name in _READ_INPUT
        return self._first_trained < (self._places[matrix.block] if reads_input else matrix.at)

    def _matrices(self, path: str) -> Iterator[WeightMatrix]:
        """Matrices of one module without its children."""
        module, parts = self._modules[path], path.split(".") if path else []
        ends = (i for i, part in enumerate(parts) if part == _BASE or part.startswith(_ADAPTER))
        end = next(ends, len(parts))
        of_lora = parts[end] if end < len(parts) and parts[end] != _BASE else ""
        block, name = ".".join(parts[: max(0, end - 1)]), parts[end - 1] if end else ""
        in_experts = _EXPERTS in parts
        for inputs, outputs, weight in _weights(module):
            share = self._experts_of_token(parts) / self._num_experts(parts) if in_experts else 1.0
            yield WeightMatrix(
                self._places[path], block, name, of_lora, inputs, outputs, share / _spread(weight),
                bool(getattr(weight, "requires_grad", True)),
            )  # fmt: skip
        for weight in module._parameters.values() if in_experts else ():  # noqa: SLF001
            if getattr(weight, "ndim", 0) == 3:  # all experts in one
                _, outputs, inputs = weight.shape
                share = float(self._experts_of_token(parts)) / _spread(weight)
                trained = bool(weight.requires_grad)
                at = self._places[path]
                yield WeightMatrix(at, block, name, of_lora, inputs, outputs, share, trained)

    def _num_experts(self, parts: list[str]) -> int:
        """Number of local experts: with expert parallelism each rank has some, and their tokens."""
        path = ".".join(parts[: parts.index(_EXPERTS) + 1])
        return max(1, len(list(self._modules[path].children())))

    def _experts_of_token(self, parts: list[str]) -> int:
        """Experts per token, from the nearest module around the experts, or the configuration."""
        around = [".".join(parts[:end]) for end in range(parts.index(_EXPERTS) + 1, -1, -1)]
        owners = [self._modules[path] for path in around if path in self._modules]
        owners += [getattr(owner, part, None) for owner in owners for part in ("router", "gate")]
        owners += [getattr(owner, "config", None) for owner in owners]
        for owner in owners:
            for name in _EXPERTS_OF_TOKEN:
                number = getattr(owner, name, None)
                if type(number) is int and number > 0:
                    return number
        raise UnknownModelError("how many experts a token goes to is not known")

    def _attention_widths(self, matrices: list[WeightMatrix]) -> Iterator[tuple[int, float]]:
        """Yield (position, width of queries + width of values) of each attention layer."""
        blocks: dict[str, list[WeightMatrix]] = {}
        for matrix in matrices:
            if not matrix.part:
                blocks.setdefault(matrix.block, []).append(matrix)
        for inner in blocks.values():
            out = next((m for m in inner if m.name in _OUT), None)
            query = next((m for m in inner if m.name in _QUERIES), None)
            is_fused = any(m.name in _FUSED for m in inner)
            if query is not None:
                values = query.outputs if out is None else out.inputs
                # position of its end: everything trained before that gets its gradient
                end = max(m.at for m in inner) if out is None else out.at
                yield end, (query.outputs + values) * query.share
            elif is_fused and out is not None:
                yield out.at, 2.0 * out.inputs * out.share
        for path, module in self._modules.items():
            if getattr(module, "in_proj_weight", None) is not None:
                yield self._places[path], 2.0 * module.embed_dim


def _has_parameters(module: Any) -> bool:
    return module is not None and next(module.parameters(), None) is not None


def _trains(module: Any) -> bool:
    return any(p is not None and p.requires_grad for p in module._parameters.values())  # noqa: SLF001


def _weights(module: Any) -> Iterator[tuple[int, int, Any]]:
    """Yield (inputs, outputs, weight) of a module's own matrices; with FSDP maybe none."""
    own, weight = module._parameters, getattr(module, "weight", None)  # noqa: SLF001
    is_matrix = weight is not None and own.get("weight") is weight and weight.ndim == 2
    linear = sys.modules["torch"].nn.Linear
    if isinstance(module, linear):
        yield module.in_features, module.out_features, weight
    elif weight is not None and is_matrix and not hasattr(module, "num_embeddings"):
        outputs, inputs = weight.shape
        is_turned = type(module).__name__ == "Conv1D"  # of GPT-2 in transformers
        yield (outputs, inputs, weight) if is_turned else (inputs, outputs, weight)
    packed = own.get("in_proj_weight")
    if packed is not None:  # torch's MultiheadAttention
        yield packed.shape[1], packed.shape[0], packed


def _spread(weight: Any) -> int:
    """Number of ranks that share a matrix by tensor parallelism, not by FSDP."""
    mesh, placements = getattr(weight, "device_mesh", None), getattr(weight, "placements", ())
    names = getattr(mesh, "mesh_dim_names", None) or ()
    together = 1
    for dimension, (name, placement) in enumerate(zip(names, placements, strict=False)):
        if "tp" in name and placement.is_shard():
            together *= mesh.size(dimension)  # type: ignore[union-attr]
    return together
