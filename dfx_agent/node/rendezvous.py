"""Where a process meets the other ranks of its job, as its launcher told it."""

from __future__ import annotations

import os

from dfx_agent.base.loopback import is_loopback
from dfx_agent.node.host.processes import environment_value
from dfx_agent.wire.segment import boot_id


def rendezvous_of(pid: int) -> str:
    """As in "10.0.0.1:29500"; "" where its environment does not say it, or may not be read.

    A loopback address is one of its network namespace: two hosts may both have it.
    """
    host, port = (environment_value(pid, name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not host or not port:
        return ""
    return f"{host}:{port}" + (f"@{_network_of(pid)}" if is_loopback(host) else "")


def _network_of(pid: int) -> str:
    """Which network namespace, of which boot."""
    try:
        return f"{boot_id().hex()[:8]}/{os.readlink(f'/proc/{pid}/ns/net')}"
    except OSError:
        return boot_id().hex()[:8]
