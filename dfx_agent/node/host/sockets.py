"""TCP sockets of this machine's processes, from ``/proc/net/tcp`` and ``/proc/PID/fd``: proc(5).

Only sockets in our own network namespace, because others cannot be reached from here.
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
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (addresses that others listen on)


class Address(NamedTuple):
    """An address as reached from this machine."""

    host: str
    port: int


class Sockets(NamedTuple):
    """Sockets by inode: listening address, and (local, remote) address of connections."""

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
            local = _address(fields[1])
            found.listening[inode] = Address(_ANY.get(local.host, local.host), local.port)
        elif state == _ESTABLISHED:
            found.connected[inode] = _address(fields[1]), _address(fields[2])


def _address(text: str) -> Address:
    """Parse "0100007F:1F90": the words of the address have the byte order of the machine."""
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    if sys.byteorder == "little":
        raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return Address(str(mapped or address), int(port, 16))


def socket_inodes(pid: int) -> Iterable[int]:
    """Inodes of the sockets that a process has open; none if the process is not readable."""
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
