"""A plain Ray job on CPU: a driver, two workers with a process group of their own, and a judge.

Run: ``ray_actors.py FOLDER [NUM_STEPS]``. While FOLDER/block exists, it says "METHOD PORT":
worker 1 waits inside this method for an answer of that port, which the test never sends.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import ray
import torch
import torch.distributed as dist

NUM_WORKERS = 2


class Worker:
    """One rank; ``update_actor`` has a collective, ``rollout`` has none."""

    def __init__(self, rank: int, folder: str) -> None:
        self.rank, self.folder = rank, Path(folder)
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def join(self) -> None:
        store = f"file://{self.folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=self.rank, world_size=NUM_WORKERS)

    def rollout(self, block: str) -> torch.Tensor:
        time.sleep(0.02)
        self.ask_environment("rollout", block)
        return torch.rand(4, 8)

    def update_actor(self, batch: torch.Tensor, block: str) -> float:
        loss = self.model(batch).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.ask_environment("update_actor", block)
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        return loss.item()

    def ask_environment(self, method: str, block: str) -> None:
        name, _, port = block.partition(" ")
        if self.rank == 1 and name == method:
            with socket.create_connection(("127.0.0.1", int(port))) as connection:
                connection.recv(1)


class Judge:
    """Has torch and no process group."""

    def score(self, batches: list[torch.Tensor]) -> float:
        return float(sum(batch.mean() for batch in batches))


def start_ray() -> None:
    """Ray gives its raylet 30 s, which is too short on a loaded machine."""
    for _ in range(3):
        try:
            ray.init(address="local", num_cpus=3, include_dashboard=False)
        except Exception as error:  # noqa: BLE001 (Ray raises no other)
            print(f"Ray did not start: {error}", flush=True)
        else:
            return
    raise SystemExit("Ray did not start")


def main() -> None:
    folder = Path(sys.argv[1])
    num_steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10**6
    start_ray()
    workers = [ray.remote(Worker).remote(rank, str(folder)) for rank in range(NUM_WORKERS)]
    judge = ray.remote(Judge).remote()
    ray.get([worker.join.remote() for worker in workers])
    for step in range(num_steps):
        file = folder / "block"
        block = file.read_text() if file.exists() else ""
        batches = ray.get([worker.rollout.remote(block) for worker in workers])
        ray.get(judge.score.remote(batches))
        pairs = zip(workers, batches, strict=True)
        ray.get([worker.update_actor.remote(batch, block) for worker, batch in pairs])
        print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
