"""Model FLOPs from the structure of models, held against torch's own counter of FLOPs."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

from torch import Tensor, nn  # noqa: E402 (after the visible skip)
from torch.nn import functional as F  # noqa: E402, N812
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from dfx_agent.commands.demo import task  # noqa: E402
from dfx_agent.commands.demo.model import TinyTransformer  # noqa: E402
from dfx_agent.shim.torch import model_flops  # noqa: E402

WIDTH, HEADS, VOCABULARY = 32, 4, 50
ROWS, LENGTH = 3, 16


class Attention(nn.Module):
    """As transformers write it: separate projections, fewer heads for keys and values."""

    def __init__(self, num_kv_heads: int = HEADS) -> None:
        super().__init__()
        self.head_width = WIDTH // HEADS
        self.q_proj = nn.Linear(WIDTH, WIDTH)
        self.k_proj = nn.Linear(WIDTH, num_kv_heads * self.head_width)
        self.v_proj = nn.Linear(WIDTH, num_kv_heads * self.head_width)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        def heads(projected: Tensor) -> Tensor:
            return projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

        query, key, value = (heads(p(hidden)) for p in (self.q_proj, self.k_proj, self.v_proj))
        repeats = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class Gated(nn.Module):
    """Feed-forward of Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down_proj = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class Experts(nn.Module):
    """Each token goes to two of five."""

    def __init__(self) -> None:
        super().__init__()
        self.top_k = 2
        self.gate = nn.Linear(WIDTH, 5, bias=False)
        self.experts = nn.ModuleList(Gated() for _ in range(5))

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)
        chances, chosen = self.gate(flat).softmax(-1).topk(self.top_k)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(flat[rows]) * chances[rows, places, None])
        return out.view_as(hidden)


class PackedExperts(nn.Module):
    """All experts in one tensor, as transformers 5 keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(5, 6 * WIDTH, WIDTH) / 8)
        self.down_proj = nn.Parameter(torch.randn(5, WIDTH, 3 * WIDTH) / 8)

    def forward(self, flat: Tensor, chosen: Tensor, chances: Tensor) -> Tensor:
        out = torch.zeros_like(flat)
        for number in range(5):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            gate, up = F.linear(flat[rows], self.gate_up_proj[number]).chunk(2, dim=-1)
            inner = F.linear(F.silu(gate) * up, self.down_proj[number])
            out = out.index_add(0, rows, inner * chances[rows, places, None])
        return out


class PackedMoe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 5, bias=False)
        self.gate.top_k = 2  # type: ignore[assignment]
        self.experts = PackedExperts()

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)
        chances, chosen = self.gate(flat).softmax(-1).topk(2)
        out: Tensor = self.experts(flat, chosen, chances).view_as(hidden)
        return out


class Layer(nn.Module):
    def __init__(self, num_kv_heads: int, feed_forward: nn.Module) -> None:
        super().__init__()
        self.self_attn = Attention(num_kv_heads)
        self.mlp = feed_forward
        self.input_layernorm = nn.LayerNorm(WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden))
        out: Tensor = hidden + self.mlp(hidden)
        return out


class Model(nn.Module):
    """A causal language model of two layers; ``tied``: its head is its embedding."""

    def __init__(
        self,
        num_kv_heads: int = HEADS,
        feed_forward: type[nn.Module] = Gated,
        *,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(num_kv_heads, feed_forward()) for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        out: Tensor = self.lm_head(hidden)
        return out


class LoraLinear(nn.Module):
    """As PEFT wraps a linear layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.base_layer = base.requires_grad_(requires_grad=False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 4, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(4, base.out_features, bias=False)})

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, hidden: Tensor) -> Tensor:
        base: Tensor = self.base_layer(hidden)
        return base + self.lora_B["default"](self.lora_A["default"](hidden))


def with_lora(model: nn.Module, *names: str) -> nn.Module:
    model.requires_grad_(requires_grad=False)
    for module in list(model.modules()):
        for name in names:
            if isinstance(getattr(module, name, None), nn.Linear):
                setattr(module, name, LoraLinear(getattr(module, name)))
    return model


def frozen_below(model: Model) -> Model:
    """The head and the last layer are trained, as in a short fine-tuning."""
    model.requires_grad_(requires_grad=False)
    model.layers[-1].requires_grad_(requires_grad=True)
    model.lm_head.requires_grad_(requires_grad=True)
    return model


ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MODELS = {
    "dense": Model,
    "gqa": lambda: Model(num_kv_heads=1),
    "experts": lambda: Model(feed_forward=Experts),
    "packed experts": lambda: Model(feed_forward=PackedMoe),
    "tied embeddings": lambda: Model(tied=True),
    "lora on attention": lambda: with_lora(Model(), "q_proj", "v_proj"),
    "lora on all": lambda: with_lora(Model(num_kv_heads=2), *ALL_LINEAR),
    "last layer": lambda: frozen_below(Model()),
    "the demo's": lambda: TinyTransformer(VOCABULARY, LENGTH),
}


def by_torch(model: nn.Module, ids: Tensor) -> tuple[float, float]:
    """(forward, backward) as torch's counter sees them; attention as plain products."""
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            logits = model(ids)
        with FlopCounterMode(display=False) as backward:
            logits.square().mean().backward()
    return float(forward.get_total_flops()), float(backward.get_total_flops())


@pytest.mark.parametrize("name", MODELS)
def test_the_structure_says_what_torch_counts(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    forward, backward = by_torch(model, ids)
    reported = model_flops.read(model)
    tokens, pairs = ROWS * LENGTH, ROWS * LENGTH * LENGTH
    assert reported.reason == ""
    assert reported.num_attentions == 2
    assert reported.forward_of_token * tokens + reported.forward_of_pair * pairs == pytest.approx(
        forward, rel=0.02
    )
    assert reported.backward_of_token * tokens + reported.backward_of_pair * pairs == pytest.approx(
        backward, rel=0.02
    )


def test_the_demo_s_own_model_as_it_trains() -> None:
    model = TinyTransformer(task.VOCABULARY_SIZE, 30)
    ids = torch.randint(0, task.VOCABULARY_SIZE, (16, 30))
    forward, backward = by_torch(model, ids)
    reported = model_flops.read(model)
    ours = reported.forward_of_token * 480 + reported.forward_of_pair * 480 * 30
    assert ours == pytest.approx(forward, rel=0.02)
    assert reported.backward_of_token * 480 + reported.backward_of_pair * 480 * 30 == pytest.approx(
        backward, rel=0.02
    )
    assert (
        reported.num_parameters
        == sum(p.numel() for p in model.parameters())
        == reported.num_trained
    )


def test_torch_s_own_attention_and_grouped_names() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            self.fc1 = nn.Linear(WIDTH, 2 * WIDTH)

        def forward(self, rows: Tensor) -> Tensor:
            out: Tensor = self.fc1(self.attn(rows, rows, rows, need_weights=False)[0])
            return out

    model = Encoder()
    rows = torch.randn(ROWS, LENGTH, WIDTH)
    forward, _ = by_torch(model, rows)
    reported = model_flops.read(model)
    tokens = ROWS * LENGTH
    ours = reported.forward_of_token * tokens + reported.forward_of_pair * tokens * LENGTH
    assert ours == pytest.approx(forward, rel=0.02)


def test_experts_whose_number_for_a_token_nobody_says_are_unknown() -> None:
    model = Model(feed_forward=Experts)
    for layer in model.layers:
        del layer.mlp.top_k
    reported = model_flops.read(model)
    assert reported.reason == "how many experts a token goes to is not known"
    assert (reported.forward_of_token, reported.num_parameters > 0) == (0.0, True)
    model.config = type("Config", (), {"num_experts_per_tok": 2})  # type: ignore[assignment]
    for layer in model.layers:
        layer.mlp.config = model.config
    assert model_flops.read(model).reason == ""


def test_what_is_no_model_says_so_and_what_is_not_counted_is_named() -> None:
    assert model_flops.read(nn.LayerNorm(8)).reason == "it has no matrix of a known kind"
    reported = model_flops.read(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Linear(4, 4)))
    assert reported.uncounted == ("Conv2d",)


@pytest.mark.parametrize("name", ["vision_config", "audio_config", "is_encoder_decoder"])
def test_a_model_of_more_than_the_tokens_of_a_batch_is_unknown(name: str) -> None:
    model = Model()
    model.config = type("Config", (), {name: True})()  # type: ignore[assignment]
    assert model_flops.read(model).reason.startswith(f"{name} in its config")


def test_a_layer_that_is_listed_several_times_runs_as_often_and_is_unknown() -> None:
    layer = nn.Linear(4, 4)
    assert model_flops.read(nn.Sequential(layer, layer)).reason.startswith("a layer is in a")
    relu = nn.ReLU()
    assert model_flops.read(nn.Sequential(layer, relu, nn.Linear(4, 4), relu)).reason == ""


def test_the_core_of_wrappers_is_what_the_job_may_call_itself() -> None:
    model = Model()

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    assert model_flops.core_of(Wrapper(Wrapper(model))) is model
    assert model_flops.core_of(model) is model
    assert model_flops.core_of(copy.deepcopy(model).lm_head).in_features == WIDTH
