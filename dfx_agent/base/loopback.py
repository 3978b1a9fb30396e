"""Which addresses only this machine reaches. Standard library: alerting and commands ask."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Of an address, or the name localhost; other names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
