"""The arithmetic of GRPO: group advantages, clipped policy loss, KL to the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyTerms:
    """Per-token terms (B, R) of the loss of one mini-batch, nothing masked or summed yet."""

    policy_loss: Tensor
    clipped: Tensor
    old_new_kl: Tensor
    reference_kl: Tensor


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """(r − mean) / (std + 1e-6) within each group of consecutive samples; ``rewards`` is (B,)."""
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + 1e-6)).flatten()


def policy_terms(
    logprobs: Tensor,
    old_logprobs: Tensor,
    reference_logprobs: Tensor,
    advantages: Tensor,
    clip_ratio: float,
) -> PolicyTerms:
    """Terms of PPO's clipped loss; log-probabilities are (B, R) in nats, ``advantages`` (B,)."""
    log_ratio = (logprobs - old_logprobs).clamp(-20, 20)
    ratio = log_ratio.exp()
    free = -advantages[:, None] * ratio
    bounded = -advantages[:, None] * ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    return PolicyTerms(
        policy_loss=torch.maximum(free, bounded),
        clipped=bounded > free,
        old_new_kl=-log_ratio.detach(),
        reference_kl=k3_kl(logprobs, reference_logprobs),
    )


def k3_kl(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy ‖ reference) per token in nats: 0 to 10, as in verl."""
    log_ratio = (reference_logprobs - logprobs).clamp(-20, 20)
    return (log_ratio.exp() - log_ratio - 1).clamp(max=10)
