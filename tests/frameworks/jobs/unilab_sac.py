"""unilab-rl's own off-policy runner, SAC learner and spawned collector on a CPU, one rank of them.

The replay ring lies in host memory: unilab-rl has one for CUDA and MPS only, and takes another.
``--situation`` says what is slow; the last line is what UniLab measured of each iteration itself.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from uni_rl.algos.sac.learner import SACLearner
from uni_rl.ipc.dp_sync import DpParameterSync
from uni_rl.offpolicy import double_buffer_runner

NUM_ENVS, OBS, ACTIONS, BATCH = 4, 4, 2, 8
LATE_SECONDS = 0.1
WAITS = ("collector_wait_time", "replay_batch_wait_time", "sync_coordination_time")


class Environment:
    """Nothing is simulated; a step takes ``step_seconds``."""

    produces_completion_receipts = False
    obs_groups_spec: Mapping[str, int] = {"obs": OBS}
    action_space = SimpleNamespace(shape=(ACTIONS,))
    state: Any = None

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds

    def init_state(self) -> Any:
        no = torch.zeros(NUM_ENVS, dtype=torch.bool)
        self.state = SimpleNamespace(
            obs={"obs": torch.rand(NUM_ENVS, OBS)}, reward=torch.rand(NUM_ENVS),
            terminated=no, truncated=no, info={}, final_observation=None,
        )  # fmt: skip
        return self.state

    def step(self, _actions: torch.Tensor) -> Any:
        time.sleep(self._step_seconds)
        return self.init_state()

    def close(self) -> None: ...


def prompt_environment(_num_envs: int, _override: Any) -> Environment:
    return Environment(0.0)


def late_environment(_num_envs: int, _override: Any) -> Environment:
    return Environment(LATE_SECONDS)


class HostReplay:
    """The ring that unilab-rl keeps on a device; its batch is not ready before ``pack_seconds``."""

    pack_seconds = 0.0

    def __init__(self, ring: Any, *, sample_count: int, **_: Any) -> None:
        self._ring, self._count = ring, sample_count
        self._rows = torch.zeros(ring.capacity, ring.storage_width)
        self._end = self._needed = 0
        self._asked = 0.0

    def progress(self, *, wait: bool = False) -> bool:
        self._ring.import_ingress_publication()
        while (given := self._ring.take_published_ingress()) is not None:
            slot, start, count, source = given
            places = torch.arange(start, start + count) % self._ring.capacity
            self._rows[places] = source[:count]
            self._ring.commit_ingress(slot=slot, start=start, count=count)
            self._end = start + count
        return False

    def start_prepare(self, _tick: int, _count: int, min_snapshot_ptr: int | None = None) -> bool:
        self._needed, self._asked = min_snapshot_ptr or 0, 0.0
        return True

    def batch_ready(self, _tick: int, _count: int) -> bool:
        """Packing begins when somebody asks: nothing else of the iteration covers it."""
        self.progress()
        self._asked = self._asked or time.monotonic()
        is_packed = time.monotonic() >= self._asked + self.pack_seconds
        return is_packed and self._end >= self._needed

    def sample_large_batch(self, tick_id: int, sample_count: int) -> dict[str, torch.Tensor]:
        ring, size = self._ring, min(self._end, self._ring.capacity)
        rows = self._rows[torch.randint(0, size, (sample_count,))]
        names = ("obs", "next_obs", "actions", "rewards", "dones", "truncated")
        return {name: ring.field_view(rows, name) for name in names}

    def after_tick(self) -> None: ...

    def close(self) -> None: ...


class Learner(SACLearner):
    """Of the observation group that there is, the critic sees the same."""

    def update_critic(self, batch: dict[str, torch.Tensor], **options: Any) -> Any:
        return super().update_critic(_with_critic(batch), **options)

    def update_actor(self, batch: dict[str, torch.Tensor], **options: Any) -> Any:
        return super().update_actor(_with_critic(batch), **options)


def _with_critic(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"critic": batch["obs"], "next_critic": batch["next_obs"], **batch}


class Runner(double_buffer_runner.DoubleBufferOffPolicyRunner):
    """Keeps what UniLab measured on this rank; ``be_late`` is called before the ranks meet."""

    be_late: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.measured: list[dict[str, float]] = []

    def _aggregate_log_statistics(self, logger: Any, **local: Any) -> Any:
        self.measured.append({name: local[name] for name in (*WAITS, "iteration_time")})
        self.be_late()
        begin = time.perf_counter()
        together = super()._aggregate_log_statistics(logger, **local)
        self.measured[-1]["rank_barrier_time"] = time.perf_counter() - begin
        return together


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--situation", choices=("prompt", "collector", "batch", "barrier"))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--iterations", type=int, default=6)
    options = parser.parse_args()

    torch.set_num_threads(1)
    double_buffer_runner.require_offpolicy_replay_device = str
    if options.situation == "batch":
        HostReplay.pack_seconds = LATE_SECONDS
    sync = None
    if options.world_size > 1:
        sync = DpParameterSync(
            world_size=options.world_size, rank=options.rank,
            rendezvous_path=str(options.store), backend="gloo", timeout_s=600,
        )  # fmt: skip
    runner = Runner(
        learner=Learner(OBS, ACTIONS, OBS, actor_hidden_dim=8, critic_hidden_dim=8, num_atoms=5),
        env_name="none", algo_type="sac",
        env_factory=late_environment if options.situation == "collector" else prompt_environment,
        num_envs=NUM_ENVS, replay_buffer_n=64, batch_size=BATCH, updates_per_step=2,
        policy_frequency=1, device="cpu", dp_sync=sync, replay_pipeline_factory=HostReplay,
    )  # fmt: skip
    if options.situation == "barrier" and options.rank == 1:
        runner.be_late = lambda: time.sleep(2 * LATE_SECONDS)  # type: ignore[method-assign]
    runner.learn(options.iterations, save_interval=0, log_dir=tempfile.mkdtemp())
    runner.close()
    if sync is not None:
        sync.close()
    print("MEASURED " + json.dumps(runner.measured), flush=True)


if __name__ == "__main__":
    main()
