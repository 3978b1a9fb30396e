"""A small GRPO-shaped job on real verl and real Ray: a driver and two workers, on CPU with gloo.

The loop has the shape of verl's own trainers (``marked_timer`` around each stage, ``global_steps``
on the trainer, one ``Tracking.log`` a step); the workers are ``Worker`` classes whose methods are
registered, called through a ``RayWorkerGroup``. Run: ``verl_grpo.py NUM_STEPS plain|colocated``.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import ray
import torch
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
)
from verl.trainer.ppo.metric_utils import compute_data_metrics, compute_timing_metrics
from verl.utils.metric import reduce_metrics
from verl.utils.profiler import marked_timer
from verl.utils.tracking import Tracking

BATCH, PROMPT, RESPONSE = 8, 4, 6


class ActorWorker(Worker):
    """Defined in ``__main__``: Ray ships it by value, wrappers included."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self.role = role
        self.model = torch.nn.Linear(RESPONSE, 1)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> str:
        torch.distributed.init_process_group("gloo")
        return f"{self.rank} of {torch.distributed.get_world_size()}"

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, batch: DataProto) -> DataProto:
        log_probs = torch.zeros_like(batch.batch["responses"], dtype=torch.float32)
        return DataProto.from_dict({"old_log_probs": log_probs})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def update_actor(self, batch: DataProto) -> DataProto:
        time.sleep(0.02)
        loss = self.model(batch.batch["responses"].float()).mean()
        loss.backward()
        for parameter in self.model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        return DataProto(meta_info={"metrics": {"actor/pg_loss": float(loss.detach())}})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None) -> int | None:
        return global_steps


def rollout() -> DataProto:
    lengths = torch.randint(1, RESPONSE + 1, (BATCH, 1))
    mask = (torch.arange(RESPONSE) < lengths).long()
    ones = torch.ones(BATCH, PROMPT, dtype=torch.long)
    scores = torch.rand(BATCH, RESPONSE) * mask
    tensors = {
        "prompts": ones,
        "responses": torch.randint(0, 9, (BATCH, RESPONSE)),
        "attention_mask": torch.cat([ones, mask], dim=1),
        "response_mask": mask,
        "token_level_scores": scores,
        "token_level_rewards": scores,
        "advantages": scores,
        "returns": scores,
    }
    uids = np.array([str(row // 4) for row in range(BATCH)], dtype=object)
    batch = DataProto.from_dict(tensors, non_tensors={"uid": uids})
    batch.meta_info["global_token_num"] = batch.batch["attention_mask"].sum(-1).tolist()
    return batch


class Trainer:
    """The shape of verl's ``PPOTrainer.fit``."""

    def __init__(self, workers: RayWorkerGroup) -> None:
        self.workers = workers
        self.global_steps = 0
        self.tracking = Tracking("dfx", "verl_grpo", ["console"], {"trainer": {}})

    def fit(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.global_steps += 1
            timing: dict[str, float] = {}
            metrics: dict[str, float] = {}
            with marked_timer("step", timing):
                batch = self.one_step(timing, metrics)
                time.sleep(0.05)  # between two stages
            metrics.update(compute_data_metrics(batch, use_critic=False))
            metrics.update(compute_timing_metrics(batch, timing))
            metrics["actor/entropy"] = 2.0 / self.global_steps
            metrics["perf/total_num_tokens"] = sum(batch.meta_info["global_token_num"])
            self.tracking.log(data=metrics, step=self.global_steps)

    def one_step(self, timing: dict[str, float], metrics: dict[str, float]) -> DataProto:
        with marked_timer("gen", timing, color="red"):
            time.sleep(0.03)
            batch = rollout()
        with marked_timer("old_log_prob", timing, color="blue"):
            batch = batch.union(self.workers.compute_log_prob(batch))
        with marked_timer("adv", timing, color="brown"):
            batch.batch["advantages"] = batch.batch["advantages"] * 1.0
        with marked_timer("update_actor", timing, color="red"):
            output = self.workers.update_actor(batch)
            metrics.update(reduce_metrics(output.meta_info["metrics"]))
        with marked_timer("update_weights", timing, color="red"):
            ray.get(self.workers.update_weights(global_steps=self.global_steps))
        return batch


def worker_group(kind: str) -> RayWorkerGroup:
    """Two actor workers; "colocated": inside a ``WorkerDict``, as verl's trainers do it."""
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
    actor = RayClassWithInitArgs(ray.remote(ActorWorker), role="actor_rollout")
    if kind == "plain":
        return RayWorkerGroup(pool, actor, device_name="cpu")
    group = RayWorkerGroup(pool, create_colocated_worker_cls({"actor": actor}), device_name="cpu")
    return group.spawn({"actor"})["actor"]


def main() -> None:
    num_steps, kind = int(sys.argv[1]), sys.argv[2]
    own = {"address": "local", "num_cpus": 2, "include_dashboard": False}
    ray.init(**({} if "RAY_ADDRESS" in os.environ else own))
    workers = worker_group(kind)
    print("ranks:", workers.init_model(), flush=True)
    Trainer(workers).fit(num_steps)
    ray.shutdown()


if __name__ == "__main__":
    main()
