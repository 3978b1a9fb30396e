"""How a job with gloo ends and cannot meet torch's deadlock.

Why: docs/decisions/hang.md.
"""

import gc

import torch.distributed as dist


def leave_group() -> None:
    """Destroy the process group; the caller has let go of its models and optimizers before.

    A DDP model that lives longer frees the group, and joins gloo's threads with the GIL held.
    """
    gc.collect()
    dist.destroy_process_group()
