"""What a job leaves behind to be compared, and how it learns that it may end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist

STEPS_BETWEEN = 20


class Results:
    """One line every 20 steps in ``$MIXED_OUT/RANK``: the step and a hash of all parameters."""

    def __init__(self) -> None:
        self._folder = Path(os.environ["MIXED_OUT"])
        self._rank = int(os.environ.get("RANK", "0"))

    def take(self, step: int, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether the job may go on; every rank answers the same."""
        if step % STEPS_BETWEEN:
            return True
        digest = hashlib.sha256()
        for parameter in parameters:
            local = getattr(parameter, "_local_tensor", parameter)
            digest.update(local.detach().float().numpy().tobytes())
        with (self._folder / str(self._rank)).open("a") as file:
            file.write(f"{step} {digest.hexdigest()[:16]}\n")
        return not self._ends()

    def _ends(self) -> bool:
        """Rank 0 looks for the file, so that all ranks end at the same step."""
        ends = torch.tensor([float((self._folder / "end").exists())])
        if dist.is_initialized():
            dist.broadcast(ends, 0)
        return bool(ends.item())
