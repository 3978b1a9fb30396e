"""Responses from a policy, and their log-probabilities under a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dfx_agent.commands.demo.model import KeyValueCache, TinyTransformer


@dataclass(frozen=True)
class Responses:
    """``tokens``, ``mask`` (true up to and including the end token), ``logprobs``: all (B, R)."""

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Responses], discarded: Tensor) -> Responses:
        """All ``parts`` below each other, as wide as the longest response in them.

        A ``discarded`` (B,) response counts no token; at least one column is left.
        """
        mask = torch.cat([part.mask for part in parts]) & ~discarded[:, None]
        width = max(1, int(mask.sum(dim=1).max()))
        tokens = torch.cat([part.tokens for part in parts])
        logprobs = torch.cat([part.logprobs for part in parts])
        return cls(tokens[:, :width], mask[:, :width], logprobs[:, :width])

    @property
    def lengths(self) -> Tensor:
        """Tokens of each response (B,)."""
        return self.mask.sum(dim=1)


class Decoding:
    """Responses to ``prompts`` (B, P) while they are written, one token of each a call.

    Temperature 1, or greedy without a ``generator``. R is ``max_response_length``; after the end
    token come end tokens with mask 0, log-prob 0.
    """

    def __init__(
        self,
        model: TinyTransformer,
        prompts: Tensor,
        max_response_length: int,
        end_token: int,
        generator: torch.Generator | None,
    ) -> None:
        shape = (len(prompts), max_response_length)
        tokens, mask = torch.full(shape, end_token), torch.zeros(shape, dtype=torch.bool)
        self.responses = Responses(tokens, mask, torch.zeros(shape))
        self.num_columns = 0
        self._model, self._end_token, self._generator = model, end_token, generator
        self._cache = KeyValueCache(len(prompts), prompts.shape[1] + max_response_length)
        self._alive = torch.ones(len(prompts), dtype=torch.bool)
        self._inputs = prompts

    @property
    def is_over(self) -> bool:
        """Whether each response has ended or is as long as it may be."""
        return self.num_columns == self.responses.tokens.shape[1] or not self._alive.any()

    @torch.no_grad()
    def advance(self) -> None:
        """Write the next column."""
        column, alive = self.num_columns, self._alive
        distribution = self._model(self._inputs, self._cache)[:, -1].log_softmax(dim=-1)
        chosen = _choose(distribution, self._generator).where(alive, self._end_token)
        self.responses.tokens[:, column] = chosen
        self.responses.mask[:, column] = alive
        chances = distribution.gather(1, chosen[:, None])[:, 0]
        self.responses.logprobs[:, column] = chances * alive
        self._alive = alive & (chosen != self._end_token)
        self._inputs = chosen[:, None]
        self.num_columns += 1


def sample_responses(
    model: TinyTransformer,
    prompts: Tensor,
    max_response_length: int,
    end_token: int,
    generator: torch.Generator | None,
) -> Responses:
    """All of a ``Decoding`` at once."""
    decoding = Decoding(model, prompts, max_response_length, end_token, generator)
    while not decoding.is_over:
        decoding.advance()
    return decoding.responses


def response_logprobs(
    model: Callable[[Tensor], Tensor], prompts: Tensor, responses: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy in nats (B, R) of each token of ``responses`` (B, R)."""
    inputs = torch.cat([prompts, responses[:, :-1]], dim=1)
    logits = model(inputs)[:, prompts.shape[1] - 1 :]
    distribution = logits.log_softmax(dim=-1)
    logprobs = distribution.gather(2, responses[:, :, None])[:, :, 0]
    return logprobs, -(distribution.exp() * distribution).sum(dim=-1)


def _choose(distribution: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return distribution.argmax(dim=-1)
    return torch.multinomial(distribution.exp(), 1, generator=generator)[:, 0]
