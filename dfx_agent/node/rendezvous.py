"""Rendezvous address of a process: where it meets the other ranks of its job."""

from __future__ import annotations

import os

from dfx_agent.base.loopback import is_loopback
from dfx_agent.node.host.processes import environment_value
from dfx_agent.wire.segment import boot_id


def rendezvous_of(pid: int) -> str:
    """For example "10.0.0.1:29500"; "" if the environment has no address or is not readable.

    A loopback address is only valid in its network namespace, so the namespace is added to it.
    """
    host, port = (environment_value(pid, name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not host or not port:
        return ""
    return f"{host}:{port}" + (f"@{_network_of(pid)}" if is_loopback(host) else "")


def _network_of(pid: int) -> str:
    """Identifies the network namespace and the boot."""
    try:
        return f"{boot_id().hex()[:8]}/{os.readlink(f'/proc/{pid}/ns/net')}"
    except OSError:
        return boot_id().hex()[:8]
