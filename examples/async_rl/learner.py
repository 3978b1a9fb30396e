"""One rank of the learner: waits for samples, trains on them, and publishes new weights.

It reports the waits of an off-policy learner separately: ``collector`` (for samples), ``barrier``
(for the other rank), ``replay_batch`` (for tensors of received samples), ``sync_coordination``
(until rank 0 has published the weights).
"""

from __future__ import annotations

import argparse
import copy
import gc
import http.client
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dfx_agent.shim as dfx
from dfx_agent.commands.demo import grpo, task
from dfx_agent.commands.demo.fault_plan import FaultPlan
from dfx_agent.commands.demo.faults import Fault
from dfx_agent.commands.demo.model import TinyTransformer
from dfx_agent.commands.demo.sampling import Responses, response_logprobs
from dfx_agent.commands.demo.step_metrics import StepMetrics, console_line
from examples.async_rl import lifeline
from examples.async_rl.environment import tensors
from examples.async_rl.faults import due
from examples.async_rl.groups import Sample
from examples.async_rl.lags import by_lag, by_position
from examples.async_rl.options import add_shared, shared
from examples.async_rl.settings import CONTEXT_LENGTH, GROUP_SIZE, MAX_RESPONSE_LENGTH
from examples.async_rl.truth import WAIT_FOR_SAMPLES, TruthLog
from examples.async_rl.weight_sync import WeightPublisher

NUM_EPOCHS = 2
NUM_MINI_BATCHES = 2
CLIP_RATIO = 0.2
REFERENCE_KL_COEF = 0.001
MAX_GRAD_NORM = 1.0
_MISMATCH = "pipeline/mismatch_kl"


@dataclass(frozen=True)
class Batch:
    """Training data of one rank in one step: B samples; the samples of a group are consecutive."""

    sample_ids: Tensor  # unique in a step, over all ranks
    prompts: Tensor
    responses: Responses
    rewards: Tensor
    advantages: Tensor
    lags: Tensor  # (B, R): trainer's weight version - version that chose the token
    environments: list[str]

    def copied(self) -> Batch:
        """A copy in new memory, like a transfer to a device."""
        r = self.responses
        responses = Responses(r.tokens.clone(), r.mask.clone(), r.logprobs.clone())
        rewards, advantages = self.rewards.clone(), self.advantages.clone()
        ids, prompts, lags = self.sample_ids.clone(), self.prompts.clone(), self.lags.clone()
        return Batch(ids, prompts, responses, rewards, advantages, lags, self.environments)

    def columns(self) -> dict[str, Any]:
        """The columns for the shape ledger, under verl's names."""
        return {
            "sample_id": self.sample_ids,
            "uid": self.sample_ids // GROUP_SIZE,
            "prompts": self.prompts,
            "responses": self.responses.tokens,
            "response_mask": self.responses.mask,
            "rollout_log_probs": self.responses.logprobs,
            "rewards": self.rewards,
            "data_source": self.environments,
        }


def packed(groups: list[dict[str, Any]], version: int) -> Batch:
    """Converts the orchestrator's groups to tensors, for a trainer with weights of ``version``."""
    samples = [Sample(**sample) for group in groups for sample in group["samples"]]
    first_ids = [group["number"] * GROUP_SIZE for group in groups]
    lengths = [len(group["samples"]) for group in groups]
    ids = [first + row for first, n in zip(first_ids, lengths, strict=True) for row in range(n)]
    prompts, responses = tensors(samples)
    rewards = torch.tensor([sample.reward for sample in samples])
    advantages = grpo.group_advantages(rewards, GROUP_SIZE)
    lags = torch.zeros(responses.mask.shape, dtype=torch.long)
    for row, sample in enumerate(samples):
        lags[row, : len(sample.versions)] = version - torch.tensor(sample.versions)
    environments = [group["environment"] for group in groups for _ in group["samples"]]
    ids_tensor = torch.tensor(ids)
    return Batch(ids_tensor, prompts, responses, rewards, advantages, lags, environments)


class Orchestrator:
    """A learner's client of the orchestrator; waits for a response without a timeout."""

    def __init__(self, url: str, rank: int) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port)
        self._rank = rank

    def batch(self, step: int) -> list[dict[str, Any]]:
        self._connection.request("GET", f"/batch?step={step}&rank={self._rank}")
        groups: list[dict[str, Any]] = json.loads(self._answer())
        return groups

    def send_version(self, version: int) -> None:
        self._connection.request("POST", "/version", json.dumps({"version": version}).encode())
        self._answer()

    def _answer(self) -> bytes:
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise OSError(f"the orchestrator answered {answer.status}")
        return body


class Learner:
    """One rank; all ranks call ``run`` in an initialised process group."""

    def __init__(
        self,
        options: argparse.Namespace,
        orchestrator: Orchestrator,
        faults: tuple[Fault, ...],
        truth: TruthLog,
    ) -> None:
        self._rank = dist.get_rank()
        self._orchestrator, self._faults, self._truth = orchestrator, faults, truth
        self._plan = FaultPlan(faults, self._rank, dist.get_world_size())
        torch.manual_seed(options.seed)
        self._policy = TinyTransformer(task.VOCABULARY_SIZE, CONTEXT_LENGTH)
        self._reference = copy.deepcopy(self._policy).requires_grad_(requires_grad=False)
        self._parallel_policy = DistributedDataParallel(self._policy)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=options.learning_rate)
        self._learning_rate = options.learning_rate
        self._publisher = WeightPublisher(options.server, faults, truth)
        self._packing = ThreadPoolExecutor(1, thread_name_prefix="pack")
        self._seconds: dict[str, float] = {}

    def run(self, num_steps: int) -> None:
        for step in range(1, num_steps + 1):
            self._run_step(step)

    def _run_step(self, step: int) -> None:
        begin_seconds = time.perf_counter()
        dfx.set_step(step)
        self._plan.begin_step(step)
        self._seconds = {}
        batch = self._next_batch(step)
        metrics = StepMetrics()
        with self._timed("train_seconds"):
            reference = self._reference_logprobs(batch)
            with self._timed("update_seconds"), dfx.stage("actor_update"):
                self._train(batch, reference, metrics)
        self._meet("final_barrier_wait_seconds")
        sync_metrics = self._publish(step)
        self._seconds["step_seconds"] = time.perf_counter() - begin_seconds
        self._truth.measured(step, self._seconds | sync_metrics)
        self._report(step, batch, metrics, sync_metrics)

    def _next_batch(self, step: int) -> Batch:
        with self._timed(WAIT_FOR_SAMPLES), dfx.wait("collector"):
            groups = self._orchestrator.batch(step)
        packing = self._packing.submit(packed, groups, step - 1)
        self._be_late(step)
        self._meet("initial_barrier_wait_seconds")
        with self._timed("replay_batch_wait_seconds"), dfx.wait("replay_batch"):
            batch = self._shaped(packing.result())
        dfx.ledger("collector", batch.columns())
        with self._timed("h2d_seconds"), dfx.stage("h2d"):
            return batch.copied()

    def _shaped(self, batch: Batch) -> Batch:
        """The batch with the rewards that the faults want, and their advantages."""
        lengths = batch.responses.lengths
        rewards = self._plan.shaped_rewards(batch.rewards, lengths, MAX_RESPONSE_LENGTH)
        if rewards is batch.rewards:
            return batch
        advantages = grpo.group_advantages(rewards, GROUP_SIZE)
        return replace(batch, rewards=rewards, advantages=advantages)

    def _be_late(self, step: int) -> None:
        for fault in due(self._faults, "slow_barrier", step):
            if fault.rank == self._rank:
                with dfx.stage("pack"):
                    time.sleep(fault.seconds)
                self._truth.injected(fault, step, fault.seconds)

    def _meet(self, name: str) -> None:
        with self._timed(name), dfx.wait("barrier"):
            dist.barrier()

    def _reference_logprobs(self, batch: Batch) -> Tensor:
        """Log-probs (B, R) of the reference policy; they complete the training data."""
        with self._timed("reference_seconds"), dfx.stage("ref_logprob"), torch.no_grad():
            tokens = batch.responses.tokens
            reference, _ = response_logprobs(self._reference, batch.prompts, tokens)
        estimates = {"ref_log_prob": reference, "advantages": batch.advantages}
        dfx.ledger("actor_update", batch.columns() | estimates)
        return reference

    def _train(self, batch: Batch, reference: Tensor, metrics: StepMetrics) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.learning_rate(self._learning_rate)
        orders = [torch.randperm(len(batch.prompts)) for _ in range(NUM_EPOCHS)]
        for rows in [part for order in orders for part in order.tensor_split(NUM_MINI_BATCHES)]:
            with dfx.stage("forward"):
                loss = self._loss(batch, rows, reference[rows], metrics)
            with dfx.stage("backward"):
                self._optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            with dfx.stage("optimizer"):
                norm = nn.utils.clip_grad_norm_(self._policy.parameters(), MAX_GRAD_NORM)
                if norm.isfinite():
                    self._optimizer.step()
            metrics.mean("actor/grad_norm", norm)

    def _loss(self, batch: Batch, rows: Tensor, reference: Tensor, metrics: StepMetrics) -> Tensor:
        """Clipped loss; the old log-probs are from the policy that generated the tokens."""
        mask, behaviour = batch.responses.mask[rows], batch.responses.logprobs[rows]
        logprobs, entropy = response_logprobs(
            self._parallel_policy, batch.prompts[rows], batch.responses.tokens[rows]
        )
        terms = grpo.policy_terms(
            logprobs, behaviour, reference, batch.advantages[rows], CLIP_RATIO
        )
        metrics.mean("actor/entropy", entropy.detach()[mask])
        metrics.mean("actor/pg_loss", terms.policy_loss[mask])
        metrics.mean("actor/pg_clipfrac", terms.clipped[mask])
        metrics.mean("actor/ppo_kl", terms.old_new_kl[mask])
        metrics.mean("actor/kl_loss", terms.reference_kl[mask])
        mismatch = grpo.k3_kl(behaviour, logprobs).detach()
        metrics.mean("rollout_corr/k3_kl", mismatch[mask])
        for lag, tokens in by_lag(mask, batch.lags[rows]):
            metrics.mean(f"{_MISMATCH}/lag/{lag}", mismatch[tokens])
        for position, tokens in by_position(mask):
            metrics.mean(f"{_MISMATCH}/position/{position}", mismatch[tokens])
        losses = terms.policy_loss + REFERENCE_KL_COEF * terms.reference_kl
        losses = losses + self._plan.entropy_penalty() * entropy
        return losses[mask].mean() * self._plan.loss_scale()

    def _publish(self, step: int) -> dict[str, float]:
        """Publish the weights on rank 0 while other ranks wait; returns the metrics of the sync."""
        sync_metrics: dict[str, float] = {}
        if self._rank == 0:
            with self._timed("weight_sync_seconds"), dfx.stage("weight_sync"):
                sync_metrics = self._publisher.publish(self._policy, step)
        with self._timed("sync_coordination_wait_seconds"), dfx.wait("sync_coordination"):
            if self._rank == 0:
                self._orchestrator.send_version(step)
            dist.barrier()
        dfx.policy_version(step)
        return sync_metrics

    def _report(
        self, step: int, batch: Batch, metrics: StepMetrics, sync_metrics: dict[str, float]
    ) -> None:
        lengths = batch.responses.lengths
        prompt_lengths = task.prompt_lengths(batch.prompts)
        dfx.tokens("prompt", int(prompt_lengths.sum()))
        dfx.tokens("response", int(lengths.sum()))
        # the reward has no KL penalty, so verl's two families have the same values
        for family in ("critic/score", "critic/rewards"):
            metrics.spread(family, batch.rewards)
        metrics.spread("critic/advantages", batch.advantages)
        metrics.spread("prompt_length", prompt_lengths)
        metrics.spread("response_length", lengths)
        metrics.mean("response_length/clip_ratio", lengths >= MAX_RESPONSE_LENGTH)
        metrics.total("perf/total_num_tokens", prompt_lengths + lengths)
        metrics.mean("actor/lr", self._plan.learning_rate(self._learning_rate))
        metrics.largest("fully_async/total_wait_time", self._seconds[WAIT_FOR_SAMPLES])
        metrics.largest("timing_s/step", self._seconds["step_seconds"])
        metrics.largest("timing_s/ref", self._seconds["reference_seconds"])
        metrics.largest("timing_s/update_actor", self._seconds["update_seconds"])
        metrics.largest("timing_s/update_weights", self._seconds.get("weight_sync_seconds", 0.0))
        with dfx.wait("collective"):
            reduced = metrics.reduced()
        if self._rank == 0:
            step_seconds = reduced["timing_s/step"]
            waited = reduced["fully_async/total_wait_time"]
            reduced["fully_async/trainer/idle_ratio"] = waited / step_seconds
            reduced["training/global_step"] = step
            dfx.scalars(_without_empty_parts(reduced) | sync_metrics, step=step)
            print(console_line(step, reduced), flush=True)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin_seconds = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - begin_seconds


def _without_empty_parts(values: dict[str, float]) -> dict[str, float]:
    """Leave out mismatch values of lags and positions without tokens (NaN)."""
    return {
        name: value
        for name, value in values.items()
        if not (name.startswith(_MISMATCH) and math.isnan(value))
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="learner")
    add_shared(parser)
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--orchestrator", required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    options = parser.parse_args()
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        is_stopping = True
        raise SystemExit(0)

    lifeline.on_stop(stop)
    try:
        _train(options)
    except BaseException:
        # when a peer has exited, gloo raises in the current call of this rank
        if not is_stopping:
            raise
    lifeline.leave(0)


def _train(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    rank, world_size = options.rank, options.world_size
    dfx.init(role="trainer", framework="verl", rank=rank, world_size=world_size)
    dist.init_process_group(
        "gloo", init_method=f"file://{options.store}", rank=rank, world_size=world_size
    )
    _, faults, truth_folder = shared(options)
    truth = TruthLog(truth_folder, f"trainer {rank}")
    learner = Learner(options, Orchestrator(options.orchestrator, rank), faults, truth)
    learner.run(options.steps)
    del learner
    gc.collect()  # a DDP model that lives longer than its group may never end (docs/limits.md)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
