"""Ranks of one job that show batches at its boundaries: recorders of this process."""

from __future__ import annotations

import torch

from dfx_agent.shim.ledger import observe
from dfx_agent.shim.recorder import Recorder
from dfx_agent.wire import Identity

NUM_ROWS = 8


class Job:
    """Ranks of one job, each with a recorder of its own in this process."""

    def __init__(self, folder, num_ranks: int = 2, role: str = "actor", world_size: int = 0):
        identities = [
            Identity(run="r", role=role, rank=rank, world_size=world_size or num_ranks)
            for rank in range(num_ranks)
        ]
        self.ranks = [Recorder(str(folder), identity) for identity in identities]
        self.step = 0

    def begin(self) -> None:
        self.step += 1
        for rank in self.ranks:
            rank.set_step(self.step)

    def crosses(self, boundary: str, **changes) -> None:
        """Every rank with its own samples; ``changes`` are for rank 0."""
        for number, rank in enumerate(self.ranks):
            batch = samples(number * NUM_ROWS, NUM_ROWS, self.step)
            observe(rank, boundary, {**batch, **(changes if number == 0 else {})})

    def steps(self, count: int, **changes) -> None:
        for _ in range(count):
            self.begin()
            self.crosses("rollout")
            self.crosses("update", **changes)

    def end(self) -> None:
        for rank in self.ranks:
            rank.finish()


def samples(first: int, num_rows: int, step: int = 0) -> dict:
    ids = torch.arange(first, first + num_rows)
    mask = torch.arange(6)[None] <= (ids % 6)[:, None]
    rewards = torch.sin(ids.double() + step)
    return {"sample_id": ids, "response_mask": mask, "rewards": rewards}
