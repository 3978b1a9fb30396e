"""While the job destroys its process groups the guest's thread stands aside.

Who holds a group then, to ask for its number, may be left with the last reference to it, and who
takes the GIL takes it from gloo's threads: one of them that waits too long stops the end of the job
(torch's own deadlock, docs/decisions/hang.md).
"""

from __future__ import annotations

import sys
import time
from typing import Any

from dfx_agent.shim.patches import PatchSet, Switch

ASIDE_NS = 5 * 10**9

_now = time.monotonic_ns


class _Begun:
    """When the job last began to destroy all its groups; None: never."""

    ns: int | None = None


def may_look() -> bool:
    """Not from when groups are destroyed until 5 s after: a job may go on without any."""
    return _Begun.ns is None or _now() - _Begun.ns >= ASIDE_NS


def patch(patches: PatchSet) -> None:
    """Where it is defined, and where jobs take it from."""
    for name in ("torch.distributed", "torch.distributed.distributed_c10d"):
        patches.replace(sys.modules.get(name), "destroy_process_group", _wrapper)


def _wrapper(original: Any, switch: Switch) -> Any:
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        if switch.is_on and (not args or args[0] is None) and kwargs.get("group") is None:
            _Begun.ns = _now()
        return original(*args, **kwargs)

    return destroy_process_group
