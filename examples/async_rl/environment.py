"""The environment: one prompt, one to three turns, and a slow calculator between two turns.

A turn is one answer of the policy. The calculator checks the digits of the answer, and the policy
tries again; the last answer counts. The number of turns depends only on the prompt, so the work of
a step does not change while the policy learns.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import torch
from torch import Tensor

import dfx_agent.shim as dfx
from dfx_agent.commands.demo import task
from dfx_agent.commands.demo.sampling import Responses
from examples.async_rl.groups import Sample

# without and with tool calls; groups alternate between the two
ENVIRONMENTS = (task.NAME, f"{task.NAME}_tools")
TOOL_SECONDS = (0.005, 0.03)


def num_turns(environment: str, prompt: Sequence[int]) -> int:
    """Number of turns: 1 without tools, else 2 (3 for numbers with an even number of digits)."""
    if environment == ENVIRONMENTS[0]:
        return 1
    num_digits = task.MAX_DIGITS - prompt.count(task.SPACE)
    return 3 if num_digits % 2 == 0 else 2


class Calculator:
    """A tool that takes 5 to 30 ms plus ``added_seconds()``."""

    def __init__(self, seed: int, added_seconds: Callable[[], float]) -> None:
        self._random = random.Random(seed)
        self._added_seconds = added_seconds

    async def digit_sums_agree(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Whether the digits of ``answer`` and ``prompt`` have the same sum."""
        with dfx.stage("tool"):
            await asyncio.sleep(self._random.uniform(*TOOL_SECONDS) + self._added_seconds())
        return _digit_sum(prompt) == _digit_sum(answer)


def _digit_sum(tokens: Sequence[int]) -> int:
    # the token ID of a digit is the digit
    return sum(token for token in tokens if token < 10)


async def play(
    environment: str,
    prompt: list[int],
    answer: Callable[[list[int]], Awaitable[Sample]],
    calculator: Calculator,
) -> Sample:
    """One episode: its last answer, and the time of all turns."""
    generation_seconds = tool_seconds = 0.0
    turns = num_turns(environment, prompt)
    for turn in range(1, turns + 1):
        begin_seconds = time.perf_counter()
        sample = await answer(prompt)
        answered_seconds = time.perf_counter()
        generation_seconds += answered_seconds - begin_seconds
        if turn < turns:
            await calculator.digit_sums_agree(prompt, sample.tokens)
            tool_seconds += time.perf_counter() - answered_seconds
    sample.num_turns = turns
    sample.generation_seconds, sample.tool_seconds = generation_seconds, tool_seconds
    return sample


def tensors(samples: Sequence[Sample]) -> tuple[Tensor, Responses]:
    """Prompts (B, P) and responses (B, R); R is the length of the longest response."""
    width = max(len(sample.tokens) for sample in samples)
    shape = (len(samples), width)
    tokens, mask = torch.full(shape, task.END), torch.zeros(shape, dtype=torch.bool)
    logprobs = torch.zeros(shape)
    for row, sample in enumerate(samples):
        length = len(sample.tokens)
        tokens[row, :length] = torch.tensor(sample.tokens)
        logprobs[row, :length] = torch.tensor(sample.logprobs)
        mask[row, :length] = True
    prompts = torch.tensor([sample.prompt for sample in samples])
    return prompts, Responses(tokens, mask, logprobs)


def give_rewards(samples: Sequence[Sample]) -> None:
    """Score the last answer of each sample; see ``task.score``."""
    begin_seconds = time.perf_counter()
    prompts, responses = tensors(samples)
    rewards = task.score(prompts, responses.tokens, responses.mask).tolist()
    seconds = (time.perf_counter() - begin_seconds) / len(samples)
    for sample, reward in zip(samples, rewards, strict=True):
        sample.reward, sample.scoring_seconds = reward, seconds
