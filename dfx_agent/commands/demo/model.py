"""A small causal transformer, about 1 M parameters, with a key-value cache for sampling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM_LAYERS = 2
NUM_HEADS = 4
MODEL_WIDTH = 208


class KeyValueCache:
    """Keys and values of the tokens seen so far: one (B, heads, capacity, head width) per layer."""

    def __init__(self, batch_size: int, capacity: int) -> None:
        shape = (NUM_LAYERS, batch_size, NUM_HEADS, capacity, MODEL_WIDTH // NUM_HEADS)
        self._keys = torch.empty(shape)
        self._values = torch.empty(shape)
        self.length = 0

    def get_seq_length(self) -> int:
        """Tokens seen so far, under the name that transformers' caches have for it."""
        return self.length

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store ``key`` and ``value`` (B, heads, T, head width) and return all up to them."""
        end = self.length + key.shape[2]
        self._keys[layer, :, :, self.length : end] = key
        self._values[layer, :, :, self.length : end] = value
        return self._keys[layer, :, :, :end], self._values[layer, :, :, :end]


class Block(nn.Module):
    """Pre-norm attention and feed-forward, both with a residual."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.attention_norm = nn.LayerNorm(MODEL_WIDTH)
        self.query_key_value = nn.Linear(MODEL_WIDTH, 3 * MODEL_WIDTH)
        self.attention_out = nn.Linear(MODEL_WIDTH, MODEL_WIDTH)
        self.feed_forward_norm = nn.LayerNorm(MODEL_WIDTH)
        self.feed_forward_in = nn.Linear(MODEL_WIDTH, 4 * MODEL_WIDTH)
        self.feed_forward_out = nn.Linear(4 * MODEL_WIDTH, MODEL_WIDTH)

    def forward(self, hidden: Tensor, cache: KeyValueCache | None) -> Tensor:
        hidden = hidden + self._attend(self.attention_norm(hidden), cache)
        inner = F.gelu(self.feed_forward_in(self.feed_forward_norm(hidden)))
        out: Tensor = hidden + self.feed_forward_out(inner)
        return out

    def _attend(self, hidden: Tensor, cache: KeyValueCache | None) -> Tensor:
        batch_size, num_tokens, _ = hidden.shape
        heads = self.query_key_value(hidden).view(batch_size, num_tokens, 3, NUM_HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        # Several tokens at once always start at position 0, one token may see all before it.
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=num_tokens > 1)
        merged = mixed.transpose(1, 2).reshape(batch_size, num_tokens, MODEL_WIDTH)
        out: Tensor = self.attention_out(merged)
        return out


class TinyTransformer(nn.Module):
    """Tokens (B, T) to next-token logits (B, T, vocabulary); T at most ``context_length``."""

    def __init__(self, vocabulary_size: int, context_length: int) -> None:
        super().__init__()
        self.context_length = context_length
        self.token_embedding = nn.Embedding(vocabulary_size, MODEL_WIDTH)
        self.position_embedding = nn.Embedding(context_length, MODEL_WIDTH)
        self.blocks = nn.ModuleList(Block(layer) for layer in range(NUM_LAYERS))
        self.final_norm = nn.LayerNorm(MODEL_WIDTH)
        self.head = nn.Linear(MODEL_WIDTH, vocabulary_size, bias=False)
        self.apply(_initialise)

    def forward(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """With a cache, ``tokens`` are the whole prompt first and then one token at a time."""
        begin = cache.length if cache is not None else 0
        positions = torch.arange(begin, begin + tokens.shape[1])
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = block(hidden, cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        logits: Tensor = self.head(self.final_norm(hidden))
        return logits


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
