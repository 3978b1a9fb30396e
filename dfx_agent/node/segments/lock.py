"""The lock file of a folder of segments: who holds it, and where to ask it.

Three lines: pid, URL for this machine, certificate that an https URL shows (its path). It says
something only while the lock is held: what a dead agent has left stays in the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from typing import NamedTuple

from dfx_agent.node.segments.owned_files import HeldFolder
from dfx_agent.wire.segment import NotRegularError, open_regular

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


class FolderLock:
    """Held until it is closed, or until its process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def announce(self, url: str, certificate: str) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, written(Holder(os.getpid(), url, certificate)), 0)

    def close(self) -> None:
        os.close(self._fd)


def take(folder: HeldFolder) -> FolderLock | Holder | None:
    """The lock, else who holds it; None when that cannot be told now.

    OSError when something else lies in its place.
    """
    if folder.is_own:
        with suppress(FileExistsError):
            folder.create(LOCK_NAME)
        return _locked(folder)
    return _replaced(folder)


def _locked(folder: HeldFolder) -> FolderLock | Holder | None:
    flags = (os.O_RDWR if folder.is_own else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(LOCK_NAME, flags | os.O_CLOEXEC, dir_fd=folder.fd)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise NotRegularError(errno.EINVAL, "not a regular file")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = parsed(os.pread(fd, MAX_BYTES, 0))
        os.close(fd)
        return holder
    named = folder.status(LOCK_NAME)
    if named is None or named.st_ino != found.st_ino:  # replaced meanwhile
        os.close(fd)
        return None
    return FolderLock(fd)


def _replaced(folder: HeldFolder) -> FolderLock | Holder | None:
    """In a folder of somebody else nothing that lies there is written to.

    A free lock makes way for one that we make, and that the guests of its owner may look at.
    """
    before = _locked(folder) if folder.status(LOCK_NAME) is not None else None
    if isinstance(before, Holder):
        return before
    folder.remove(LOCK_NAME)
    try:
        fd = folder.open_new(LOCK_NAME)
    except FileExistsError:  # another agent was faster
        return None
    finally:
        if before is not None:
            before.close()
    os.fchown(fd, folder.uid, -1)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return FolderLock(fd)


def holder_of(directory: str) -> tuple[Holder | None, bool]:
    """(what the lock says, whether it was written by us): for those who look from outside."""
    try:
        fd = open_regular(os.path.join(directory, LOCK_NAME))
    except OSError:
        return None, False
    try:
        return parsed(os.pread(fd, MAX_BYTES, 0)), os.fstat(fd).st_uid == os.getuid()
    finally:
        os.close(fd)
