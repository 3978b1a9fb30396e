"""Reads the rank from ``init_process_group(rank=..., world_size=...)`` if no launcher sets it.

Ray actors call it with numbers of their own, which are not in their environment.
"""

from __future__ import annotations

import sys
from typing import Any

from dfx_agent.shim import identity, recorder
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.wire.layout import UNKNOWN


class _Given:
    """The recorder whose rank was set here; a later process group may change it."""

    writer: recorder.Recorder | None = None


def patch(patches: PatchSet) -> None:
    """Patch the function where it is defined, and where jobs import it from."""
    for name in ("torch.distributed", "torch.distributed.distributed_c10d"):
        patches.replace(sys.modules.get(name), "init_process_group", _wrapper)


def _wrapper(original: Any, switch: Switch) -> Any:
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if switch.is_on:
            try:
                _set_rank()
            except Exception:  # noqa: BLE001 (never into the job)
                recorder.count_error()
        return result

    return init_process_group


def _set_rank() -> None:
    """Set rank and world size, unless the launcher or the job has set them."""
    distributed: Any = sys.modules["torch.distributed"]
    numbers = {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    writer = recorder.current
    if writer is None:
        is_numbered = identity.from_environment().rank != UNKNOWN
        start = None if is_numbered else recorder.start_late
        writer = start(**numbers) if start is not None else None
        _Given.writer = writer
    elif writer.identity.rank == UNKNOWN or writer is _Given.writer:
        writer.update_identity(numbers)
        _Given.writer = writer
    if writer is not None and writer.identity.role == identity.UNNUMBERED:
        writer.update_identity({"role": "trainer"})
