"""GRPO on one rank: marks every stage of a step for dfx-agent's guest, as user code does."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dfx_agent.shim as dfx
from dfx_agent.commands.demo import grpo, task
from dfx_agent.commands.demo.fault_plan import FaultPlan
from dfx_agent.commands.demo.model import TinyTransformer
from dfx_agent.commands.demo.sampling import Responses, response_logprobs, sample_responses
from dfx_agent.commands.demo.step_metrics import StepMetrics, console_line, short_line

MAX_RESPONSE_LENGTH = 24
ROLLOUT_BATCH_SIZE = 32
NUM_MINI_BATCHES = 4
CLIP_RATIO = 0.2
REFERENCE_KL_COEF = 0.001
MAX_GRAD_NORM = 1.0
NUM_VALIDATION_PROMPTS = 256
VALIDATION_SEED = 1_000_003

# Stage -> the timer of verl's trainer for it; the stages inside actor_update have none.
TIMERS = {
    "rollout": "timing_s/gen",
    "reward": "timing_s/reward",
    "old_logprob": "timing_s/old_log_prob",
    "ref_logprob": "timing_s/ref",
    "advantage": "timing_s/adv",
    "actor_update": "timing_s/update_actor",
    "weight_sync": "timing_s/update_weights",
    "checkpoint": "timing_s/save_checkpoint",
    "validation": "timing_s/testing",
}


@dataclass(frozen=True)
class Settings:
    """What the command line can change; ``*_every`` count steps, 0 is never.

    ``is_short``: a short line for each step instead of all metrics as verl's console logger.
    """

    seed: int
    num_steps: int
    prompts_per_rank: int
    group_size: int
    learning_rate: float
    checkpoint_every: int
    validate_every: int
    checkpoint_folder: Path
    is_short: bool = False


@dataclass(frozen=True)
class Experience:
    """What a rank learns from in one step: B samples, groups of consecutive ones share a prompt."""

    prompts: Tensor
    responses: Responses
    rewards: Tensor
    old_logprobs: Tensor
    reference_logprobs: Tensor
    advantages: Tensor


class Trainer:
    """One rank of the job; all ranks call ``run`` in an initialised process group."""

    def __init__(self, settings: Settings, plan: FaultPlan) -> None:
        self._settings = settings
        self._plan = plan
        self._rank = dist.get_rank()
        self._world_size = dist.get_world_size()
        torch.manual_seed(settings.seed)
        context_length = task.PROMPT_WIDTH + MAX_RESPONSE_LENGTH
        self._policy = TinyTransformer(task.VOCABULARY_SIZE, context_length)
        self._rollout_policy = copy.deepcopy(self._policy).requires_grad_(requires_grad=False)
        self._reference = copy.deepcopy(self._policy).requires_grad_(requires_grad=False)
        self._parallel_policy = DistributedDataParallel(self._policy)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=settings.learning_rate)
        self._generator = torch.Generator().manual_seed(settings.seed * 1000 + self._rank)
        self._metrics = StepMetrics()

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._policy.parameters())

    def run(self) -> None:
        dfx.policy_version(0)
        for step in range(1, self._settings.num_steps + 1):
            self._run_step(step)

    def _run_step(self, step: int) -> None:
        begin_seconds = time.perf_counter()
        dfx.set_step(step)
        self._plan.begin_step(step)
        self._metrics = StepMetrics()
        experience = self._make_experience()
        self._update_actor(experience)
        self._sync_weights(step)
        if _is_due(step, self._settings.checkpoint_every):
            self._save_checkpoint(step)
        self._metrics.largest("timing_s/step", time.perf_counter() - begin_seconds)
        if _is_due(step, self._settings.validate_every):
            self._validate()
        self._report(step)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begin_seconds = time.perf_counter()
        with dfx.stage(name):
            self._plan.enter(name)
            with self._plan.slowed(name):
                yield
        if name in TIMERS:
            self._metrics.largest(TIMERS[name], time.perf_counter() - begin_seconds)

    def _make_experience(self) -> Experience:
        with self._stage("rollout"):
            prompts, responses = self._roll_out()
        batch = self._batch(prompts, responses)
        dfx.ledger("rollout", batch)
        with self._stage("reward"):
            rewards = self._reward(prompts, responses)
        scored = {"rewards": rewards, "data_source": task.data_sources(prompts)}
        dfx.ledger("reward", batch | scored)
        rewards = self._plan.misaligned(rewards)
        with self._stage("old_logprob"), torch.no_grad():
            old_logprobs, entropy = response_logprobs(self._policy, prompts, responses.tokens)
        with self._stage("ref_logprob"), torch.no_grad():
            reference_logprobs, _ = response_logprobs(self._reference, prompts, responses.tokens)
        with self._stage("advantage"):
            advantages = grpo.group_advantages(rewards, self._settings.group_size)
        estimates = {
            "rewards": rewards,
            "old_log_probs": old_logprobs,
            "ref_log_prob": reference_logprobs,
            "advantages": advantages,
        }
        dfx.ledger("actor_update", batch | estimates)
        num_tokens = float(prompts.numel() + responses.tokens.numel())
        for stage in ("old_logprob", "ref_logprob"):  # one pass for all samples of the rank
            self._metrics.largest(f"pipeline/micro_batch_tokens/{stage}", num_tokens)
        mask = responses.mask
        difference = (old_logprobs.exp() - responses.logprobs.exp()).abs()[mask]
        self._metrics.spread("critic/advantages", advantages[:, None].expand_as(mask)[mask])
        self._metrics.mean("actor/entropy", entropy[mask])
        self._metrics.mean("training/rollout_probs_diff_mean", difference)
        self._metrics.largest("training/rollout_probs_diff_max", difference)
        return Experience(prompts, responses, rewards, old_logprobs, reference_logprobs, advantages)

    def _batch(self, prompts: Tensor, responses: Responses) -> dict[str, Tensor]:
        """What verl's batches hold after the rollout; ids are unique in a step."""
        rows = torch.arange(len(prompts))
        first_row = self._rank << 32
        return {
            "sample_id": first_row + rows,
            "uid": first_row + rows // self._settings.group_size,
            "prompts": prompts,
            "responses": responses.tokens,
            "response_mask": responses.mask,
            "rollout_log_probs": responses.logprobs,
        }

    def _roll_out(self) -> tuple[Tensor, Responses]:
        """Prompts (B, P), each repeated for its group, and one response to each."""
        num_prompts = self._plan.num_prompts(self._settings.prompts_per_rank)
        prompts = task.draw_prompts(num_prompts, self._generator)
        prompts = prompts.repeat_interleave(self._settings.group_size, dim=0)
        parts = []
        for begin in range(0, len(prompts), ROLLOUT_BATCH_SIZE):
            dfx.queue("rollout_pending", len(prompts) - begin)
            batch = prompts[begin : begin + ROLLOUT_BATCH_SIZE]
            parts.append(self._sample(batch, self._generator))
        dfx.queue("rollout_pending", 0)
        aborted = self._plan.aborted(len(prompts), self._generator)
        responses = Responses.joined(parts, discarded=aborted)
        self._count_tokens(task.prompt_lengths(prompts), responses.lengths)
        return prompts, responses

    def _sample(self, prompts: Tensor, generator: torch.Generator | None) -> Responses:
        return sample_responses(
            self._rollout_policy, prompts, MAX_RESPONSE_LENGTH, task.END, generator
        )

    def _count_tokens(self, prompt_lengths: Tensor, response_lengths: Tensor) -> None:
        dfx.tokens("prompt", int(prompt_lengths.sum()))
        dfx.tokens("response", int(response_lengths.sum()))
        self._metrics.spread("prompt_length", prompt_lengths)
        self._metrics.spread("response_length", response_lengths)
        cut_off = response_lengths == MAX_RESPONSE_LENGTH
        self._metrics.mean("response_length/clip_ratio", cut_off)
        self._metrics.mean("response/aborted_ratio", response_lengths == 0)
        self._metrics.total("perf/total_num_tokens", prompt_lengths + response_lengths)

    def _reward(self, prompts: Tensor, responses: Responses) -> Tensor:
        scores = task.score(prompts, responses.tokens, responses.mask)
        scores = self._plan.shaped_rewards(scores, responses.lengths, MAX_RESPONSE_LENGTH)
        # No KL is taken off the reward here, so verl's two families hold the same numbers.
        for family in ("critic/score", "critic/rewards"):
            self._metrics.spread(family, scores[responses.lengths > 0])
        return scores

    def _update_actor(self, experience: Experience) -> None:
        learning_rate = self._plan.learning_rate(self._settings.learning_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        with self._stage("actor_update"):
            order = torch.randperm(len(experience.prompts), generator=self._generator)
            mini_batches = order.tensor_split(NUM_MINI_BATCHES)
            tokens = torch.stack([experience.responses.mask[rows].sum() for rows in mini_batches])
            with dfx.wait("collective"):
                dist.all_reduce(tokens)
            for rows, num_tokens in zip(mini_batches, tokens.tolist(), strict=True):
                self._update_on(experience, rows, max(1, num_tokens))
        self._metrics.mean("actor/lr", learning_rate)

    def _update_on(self, experience: Experience, rows: Tensor, num_tokens: int) -> None:
        """One optimizer step on ``rows``; all ranks together hold ``num_tokens`` in it."""
        with self._stage("forward"):
            loss = self._loss(experience, rows, num_tokens)
        with self._stage("backward"):
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        with self._stage("optimizer"):
            norm = nn.utils.clip_grad_norm_(self._policy.parameters(), MAX_GRAD_NORM)
            # As verl does: a step that would destroy the weights is left out, and seen in the log.
            if norm.isfinite():
                self._optimizer.step()
        self._metrics.mean("actor/grad_norm", norm)

    def _loss(self, experience: Experience, rows: Tensor, num_tokens: int) -> Tensor:
        """This rank's sum, scaled so that DDP's mean over ranks is the mean per token."""
        mask = experience.responses.mask[rows]
        logprobs, entropy = response_logprobs(
            self._parallel_policy, experience.prompts[rows], experience.responses.tokens[rows]
        )
        terms = grpo.policy_terms(
            logprobs,
            experience.old_logprobs[rows],
            experience.reference_logprobs[rows],
            experience.advantages[rows],
            CLIP_RATIO,
        )
        losses = terms.policy_loss + REFERENCE_KL_COEF * terms.reference_kl
        losses = losses + self._plan.entropy_penalty() * entropy
        losses = losses[mask] * self._plan.loss_scale()
        self._metrics.mean("actor/pg_loss", terms.policy_loss[mask])
        self._metrics.mean("actor/pg_clipfrac", terms.clipped[mask])
        self._metrics.mean("actor/ppo_kl", terms.old_new_kl[mask])
        self._metrics.mean("actor/kl_loss", terms.reference_kl[mask])
        self._metrics.mean("actor/loss", losses)
        return losses.sum() * self._world_size / num_tokens

    def _sync_weights(self, version: int) -> None:
        with self._stage("weight_sync"):
            with dfx.wait("barrier"):
                dist.barrier()
            weights = nn.utils.parameters_to_vector(self._policy.parameters()).detach()
            with dfx.wait("collective"):
                dist.broadcast(weights, src=0)
            nn.utils.vector_to_parameters(weights, self._rollout_policy.parameters())
        dfx.policy_version(version)

    def _save_checkpoint(self, step: int) -> None:
        """Rank 0 writes, the others wait; the file is replaced in one go."""
        with self._stage("checkpoint"):
            if self._rank == 0:
                folder = self._settings.checkpoint_folder
                unfinished = folder / "unfinished.pt"
                model, optimizer = self._policy.state_dict(), self._optimizer.state_dict()
                torch.save({"step": step, "model": model, "optimizer": optimizer}, unfinished)
                unfinished.replace(folder / "latest.pt")
            with dfx.wait("barrier"):
                dist.barrier()

    def _validate(self) -> None:
        """Share of exact greedy answers to a fixed set of prompts that the ranks divide."""
        with self._stage("validation"):
            generator = torch.Generator().manual_seed(VALIDATION_SEED)
            prompts = task.draw_prompts(NUM_VALIDATION_PROMPTS, generator)
            prompts = prompts[self._rank :: self._world_size]
            responses = self._sample(prompts, None)
            right = task.score(prompts, responses.tokens, responses.mask) == 1
        self._metrics.mean(f"val-core/{task.NAME}/acc/mean@1", right)

    def _report(self, step: int) -> None:
        with dfx.wait("collective"):
            metrics = self._metrics.reduced()
        if self._rank == 0:
            step_seconds = metrics["timing_s/step"]
            metrics["perf/time_per_step"] = step_seconds
            num_tokens = metrics["perf/total_num_tokens"]
            metrics["perf/throughput"] = num_tokens / step_seconds / self._world_size
            metrics["training/global_step"] = step
            dfx.scalars(metrics, step=step)
            if self._settings.is_short:
                line = short_line(step, self._settings.num_steps, metrics, TIMERS)
            else:
                line = console_line(step, metrics)
            print(line, flush=True)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
