"""Faults made to happen for real, inside the rank that they are meant for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dfx_agent.commands.demo.faults import Fault

DIVERGENCE_FACTOR = 100.0
# at 1e-3 some runs recover and even learn
DIVERGENCE_LEARNING_RATE = 1e-2
# with 1.0 the reward still rises, and entropy falls hardly faster than in a healthy run
ENTROPY_PENALTY = 2.5
# length must count more than the score: with a bonus of 2 responses grew only after 8 to 20 steps
LENGTH_BONUS = 20.0


@dataclass
class FaultPlan:
    """All faults of the run as ``rank`` of ``world_size`` meets them.

    What a rank asks at each point where something may happen; without faults every answer is the
    harmless one.
    """

    faults: Sequence[Fault] = ()
    rank: int = 0
    world_size: int = 1
    step: int = 0
    _leaked: list[bytearray] = field(default_factory=list)

    def begin_step(self, step: int) -> None:
        """Remember the step and leak what is due; every byte is written, so it is resident."""
        self.step = step
        for fault in self._of_kind("host_leak"):
            self._leaked.append(bytearray(b"\x01") * int(fault.mib_per_step * 2**20))

    def enter(self, stage: str) -> None:
        """Called inside ``stage``: may never return, or kill this process in mid-step."""
        for fault in self._due("hang"):
            while fault.rank == self.rank and fault.stage == stage:
                time.sleep(3600)
        for fault in self._due("crash"):
            if fault.rank == self.rank and stage == "backward":
                os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def slowed(self, stage: str) -> Iterator[None]:
        """Make a straggler's work inside take FACTOR times the processor time it takes."""
        begin_seconds = time.thread_time()
        yield
        if stage == "actor_update":  # the stages inside it have been slowed already
            return
        busy_seconds = time.thread_time() - begin_seconds
        for fault in self._of_kind("straggler"):
            if fault.rank == self.rank:
                _burn((fault.factor - 1) * busy_seconds)

    def num_prompts(self, prompts_per_rank: int) -> int:
        """Half as many prompts on the first rank, one and a half times as many on the last."""
        if not self._of_kind("tokens_imbalance"):
            return prompts_per_rank
        return max(1, round(prompts_per_rank * (0.5 + self.rank / (self.world_size - 1))))

    def aborted(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """True (num_samples,) for the responses that the rollout engine gives up."""
        ratio = max((fault.ratio for fault in self._of_kind("rollout_abort")), default=0.0)
        return torch.rand(num_samples, generator=generator) < ratio

    def shaped_rewards(self, scores: Tensor, num_tokens: Tensor, max_tokens: int) -> Tensor:
        """Rewards (B,) from scores (B,): with length_explosion, chatter pays more than truth."""
        if not self._due("length_explosion"):
            return scores
        return scores + LENGTH_BONUS * num_tokens / max_tokens

    def misaligned(self, rewards: Tensor) -> Tensor:
        """Rewards (B,), with misalign on rank 0 each of them the next sample's."""
        return rewards.roll(1) if self._due("misalign") and self.rank == 0 else rewards

    def learning_rate(self, learning_rate: float) -> float:
        if not self._due("divergence"):
            return learning_rate
        return max(DIVERGENCE_FACTOR * learning_rate, DIVERGENCE_LEARNING_RATE)

    def entropy_penalty(self) -> float:
        """Weight of the policy's entropy in the loss, which is minimised; 0 in a sound run."""
        return ENTROPY_PENALTY if self._due("entropy_collapse") else 0.0

    def loss_scale(self) -> float:
        """What the loss is multiplied with: 1, or NaN."""
        return float("nan") if self._due("nan") else 1.0

    def _of_kind(self, kind: str) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind == kind]

    def _due(self, kind: str) -> list[Fault]:
        return [fault for fault in self._of_kind(kind) if self.step >= fault.step]


def _burn(busy_seconds: float) -> None:
    """Do useless work for ``busy_seconds`` of this thread's processor time."""
    end_seconds = time.thread_time() + busy_seconds
    matrix = torch.ones(64, 64)
    while time.thread_time() < end_seconds:
        torch.mm(matrix, matrix)
