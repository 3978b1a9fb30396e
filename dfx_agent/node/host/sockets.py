"""TCP sockets of this machine's processes, by ``/proc/net/tcp`` and ``/proc/PID/fd``: proc(5).

Of our own network namespace: what listens in another cannot be asked from here.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

_ESTABLISHED, _LISTEN = "01", "0A"
_MAX_FILES = 4096
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (what is listened on, by others)


class Address(NamedTuple):
    """As somebody on this machine reaches it."""

    host: str
    port: int


class Sockets(NamedTuple):
    """Inode of the socket -> where it listens; and -> (its own end, the end it is connected to)."""

    listening: dict[int, Address]
    connected: dict[int, tuple[Address, Address]]


def sockets() -> Sockets:
    found = Sockets({}, {})
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(path, encoding="ascii") as file:
            next(file, None)
            for line in file:
                _add(found, line.split())
    return found


def _add(found: Sockets, fields: list[str]) -> None:
    with suppress(ValueError, IndexError):
        state, inode = fields[3], int(fields[9])
        if state == _LISTEN:
            own = _address(fields[1])
            found.listening[inode] = Address(_ANY.get(own.host, own.host), own.port)
        elif state == _ESTABLISHED:
            found.connected[inode] = _address(fields[1]), _address(fields[2])


def _address(text: str) -> Address:
    """Of "0100007F:1F90": words of the address are in the order of the machine's bytes."""
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    if sys.byteorder == "little":
        raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return Address(str(mapped or address), int(port, 16))


def inodes_of(pid: int) -> Iterable[int]:
    """Of the sockets that a process has open; none of a stranger's."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)[:_MAX_FILES]
    except OSError:
        return
    for name in names:
        with suppress(OSError, ValueError):
            target = os.readlink(f"{folder}/{name}")
            if target.startswith("socket:["):
                yield int(target[8:-1])
