"""Finds the host of node rank 0, where the hub runs, in the launcher's options and variables."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from dfx_agent.base.loopback import is_loopback
from dfx_agent.base.text import whole_number
from dfx_agent.facts.seat import Launch

_HOST_OPTIONS = ("master-addr", "rdzv-endpoint")
_RANK_OPTION = "node-rank"
# in this order: the first variable that is set counts
_RANK_VARIABLES = ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID")
_TORCHRUN = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_FIRST_HOST = re.compile(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?")


class Rendezvous(NamedTuple):
    """``host`` of node rank 0; ``is_here``: it is this machine."""

    host: str
    is_here: bool


def rendezvous_of(command: Sequence[str], environ: Mapping[str, str]) -> Rendezvous | None:
    """The rendezvous of the job that ``command`` starts; None if it is not specified."""
    host = _host(command, environ)
    if not host:
        return None
    rank = whole_number(_node_rank(command, environ))
    if rank is not None and not is_loopback(host):
        return Rendezvous(host, rank == 0)
    return Rendezvous(host, _is_this_machine(host))


def launch_of(command: Sequence[str], environ: Mapping[str, str], run: str) -> Launch | None:
    """Of torchrun on several nodes, which starts no rank before it has met the others."""
    nodes = _option(command, "nnodes") or environ.get("PET_NNODES", "")
    least = whole_number(nodes.partition(":")[0])
    is_torchrun = any(os.path.basename(word) in _TORCHRUN for word in command)
    if not is_torchrun or least is None or least < 2:
        return None
    rank = whole_number(_node_rank(command, environ))
    return Launch(
        run=run,
        num_nodes=least,
        node_rank=-1 if rank is None else rank,
        meets_at=_option(command, "rdzv-endpoint") or _option(command, "master-addr"),
        begin_ns=time.monotonic_ns(),
    )


def _node_rank(command: Sequence[str], environ: Mapping[str, str]) -> str:
    return _option(command, _RANK_OPTION) or next(_values(environ, _RANK_VARIABLES), "")


def _host(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Torchrun's options, then what launchers and schedulers export: Slurm's first host, Ray's."""
    for option in _HOST_OPTIONS:
        if text := _option(command, option):
            return _without_port(text)
    if host := environ.get("MASTER_ADDR", ""):
        return host
    if found := _FIRST_HOST.match(environ.get("SLURM_JOB_NODELIST", "")):
        return "".join(part or "" for part in found.groups())
    address = environ.get("RAY_ADDRESS", "").rpartition("://")[2]
    return _without_port(address) if ":" in address else ""


def _option(command: Sequence[str], name: str) -> str:
    """``--name value`` or ``--name=value``, with - or _; "" where it is not given."""
    for number, word in enumerate(command):
        head, sign, tail = word.partition("=")
        if head.startswith("-") and head.lstrip("-").replace("_", "-") == name:
            return tail if sign else "".join(command[number + 1 : number + 2])
    return ""


def _values(environ: Mapping[str, str], names: Sequence[str]) -> Iterator[str]:
    return (environ[name] for name in names if environ.get(name))


def _without_port(text: str) -> str:
    host, colon, port = text.rpartition(":")
    return host.strip("[]") if colon and port.isdecimal() else text


def _is_this_machine(host: str) -> bool:
    """Whether an address of the name is one of ours: only those can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_ours(family, address) for family, _, _, _, address in found)


def _is_ours(family: int, address: tuple[object, ...]) -> bool:
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
