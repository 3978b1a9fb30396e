"""The task: write the digits of the prompt in reverse order, then stop.

A prompt is a field of fixed width, ``"    4071="``; the right response is ``"1704."``, where ``.``
is the end token. The spaces on the left are ordinary tokens, so no attention mask is needed, and
only prompts of one width may share a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHARACTERS = "0123456789=. "
EQUALS, END, SPACE = (CHARACTERS.index(character) for character in "=. ")
VOCABULARY_SIZE = len(CHARACTERS)
MIN_DIGITS = 3
MAX_DIGITS = 8
PROMPT_WIDTH = MAX_DIGITS + 1
NAME = "digit_reversal"


def encode(text: str) -> list[int]:
    """Token ids of ``text``; ValueError on a character that is not in ``CHARACTERS``."""
    return [CHARACTERS.index(character) for character in text]


def decode(tokens: Tensor) -> str:
    """The text of token ids (T,)."""
    return "".join(CHARACTERS[token] for token in tokens.tolist())


def draw_prompts(num_prompts: int, generator: torch.Generator) -> Tensor:
    """Random prompts (num_prompts, PROMPT_WIDTH) of MIN_DIGITS to MAX_DIGITS digits."""
    shape = (num_prompts, MAX_DIGITS)
    digits = torch.randint(10, shape, generator=generator)
    num_digits = torch.randint(MIN_DIGITS, MAX_DIGITS + 1, (num_prompts, 1), generator=generator)
    digits[torch.arange(MAX_DIGITS) < MAX_DIGITS - num_digits] = SPACE
    return torch.cat([digits, torch.full((num_prompts, 1), EQUALS)], dim=1)


def right_responses(prompts: Tensor) -> Tensor:
    """The right response to each prompt (B, MAX_DIGITS + 1), filled up with END on the right."""
    digits = prompts[:, :MAX_DIGITS].flip(1)
    digits = digits.masked_fill(digits == SPACE, END)
    return torch.cat([digits, torch.full((len(prompts), 1), END)], dim=1)


def prompt_lengths(prompts: Tensor) -> Tensor:
    """Tokens of each prompt (B,) without the spaces."""
    return (prompts != SPACE).sum(dim=1)


def data_sources(prompts: Tensor) -> list[str]:
    """Name of the part of the task to which each prompt belongs: longer numbers are harder."""
    return [f"{length - 1} digits" for length in prompt_lengths(prompts).tolist()]


def score(prompts: Tensor, responses: Tensor, response_mask: Tensor) -> Tensor:
    """Share of right tokens of each response (B,), in [0, 1]; 1 only for the exact answer.

    ``responses`` and ``response_mask`` are (B, R), the mask true up to and including END. The share
    is of the longer of response and answer, so that neither silence nor chatter pays.
    """
    answers = right_responses(prompts)
    answer_lengths = prompt_lengths(prompts)
    width = min(answers.shape[1], responses.shape[1])
    counted = response_mask[:, :width].bool() & (torch.arange(width) < answer_lengths[:, None])
    num_right = ((responses[:, :width] == answers[:, :width]) & counted).sum(dim=1)
    longer = torch.maximum(answer_lengths, response_mask.sum(dim=1))
    return num_right / longer
