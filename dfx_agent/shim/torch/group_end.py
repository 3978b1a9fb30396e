"""Pauses the guest's thread while the job destroys its process groups.

The guest's thread refers to a group while it reads the group's number, so it may hold the last
reference to a destroyed group. It also takes the GIL from gloo's threads; one of them that waits
too long blocks the exit of the job (torch's own deadlock, docs/decisions/hang.md).
"""

from __future__ import annotations

import sys
import time
from typing import Any

from dfx_agent.shim.patches import PatchSet, Switch

ASIDE_NS = 5 * 10**9

_now = time.monotonic_ns


class _Begun:
    """When the job last began to destroy all its groups; None for never."""

    ns: int | None = None


def may_read_groups() -> bool:
    """False for 5 s after groups are destroyed; the job may continue without any afterwards."""
    return _Begun.ns is None or _now() - _Begun.ns >= ASIDE_NS


def patch(patches: PatchSet) -> None:
    """Patch the function where it is defined, and where jobs import it from."""
    for name in ("torch.distributed", "torch.distributed.distributed_c10d"):
        patches.replace(sys.modules.get(name), "destroy_process_group", _wrapper)


def _wrapper(original: Any, switch: Switch) -> Any:
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        if switch.is_on and (not args or args[0] is None) and kwargs.get("group") is None:
            _Begun.ns = _now()
        return original(*args, **kwargs)

    return destroy_process_group
