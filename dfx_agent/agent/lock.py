"""What stands in the lock file of a folder of segments: who holds it, and where to ask it.

Three lines: pid, URL for this machine, certificate that an https URL shows (its path). It says
something only while the lock is held: what a dead agent has left stays in the file.
"""

from __future__ import annotations

from typing import NamedTuple

LOCK_NAME = "agent.lock"
MAX_BYTES = 8192
# agents before this format read the first 20 bytes, and know only the pid
_PID_WIDTH = 19


class Holder(NamedTuple):
    """``url`` is "" before the agent serves, ``certificate`` without TLS."""

    pid: int
    url: str = ""
    certificate: str = ""


def written(holder: Holder) -> bytes:
    return f"{holder.pid:<{_PID_WIDTH}}\n{holder.url}\n{holder.certificate}\n".encode()


def parsed(data: bytes) -> Holder | None:
    """None when there is no pid in it."""
    lines = data.decode(errors="replace").split("\n")
    pid, url, certificate, *_ = *lines, "", "", ""
    return Holder(int(pid), url, certificate) if pid.strip().isdecimal() else None
