"""Whose process is at the other end of a connection that never left this machine.

``/proc/net/tcp`` and ``tcp6`` of Linux: the owner of each socket, here of the client's own end.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_ESTABLISHED = "01"
_STATE, _UID, _INODE = 3, 7, 9

Address = tuple[str, int]


def is_loopback(peer: Address | None) -> bool:
    ip = _ip(peer[0]) if peer else None
    return ip is not None and ip.is_loopback


def uid_of(client: Address, server: Address) -> int | None:
    """Who owns the client's end of a connection to ``server``; None when it cannot be told.

    A socket that its process has closed belongs to nobody, and the kernel shows it as root's: only
    one that is established and has an inode counts.
    """
    needles = list(_rows_begin(client, server))
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as file:
                text = file.read()
        except (OSError, ValueError):
            continue
        for needle in needles:
            at = text.find(needle)
            fields = text[text.rfind("\n", 0, at) + 1 :].split(None, _INODE + 1) if at >= 0 else []
            if len(fields) > _INODE and fields[_STATE] == _ESTABLISHED and fields[_INODE] != "0":
                return int(fields[_UID])
    return None


def _rows_begin(client: Address, server: Address) -> Iterator[str]:
    """Both ends as the tables have them; an IPv4 address may stand in an IPv6 one."""
    near, far = _ip(client[0]), _ip(server[0])
    if near is None or far is None or near.version != far.version:
        return
    yield f" {_hex(near)}:{client[1]:04X} {_hex(far)}:{server[1]:04X} "
    if near.version == 4:
        mapped = [ipaddress.ip_address(f"::ffff:{ip}") for ip in (near, far)]
        yield f" {_hex(mapped[0])}:{client[1]:04X} {_hex(mapped[1])}:{server[1]:04X} "


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def _hex(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """As the kernel prints it: words of 32 bits, each as this machine has it in memory."""
    words = struct.unpack(f"={len(ip.packed) // 4}I", ip.packed)
    return "".join(f"{word:08X}" for word in words)
