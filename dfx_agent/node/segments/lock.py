"""The lock file of a segment folder: which agent holds it, and the agent's address.

The file has three lines: pid, URL for this machine, path of the certificate of an https URL. They
are valid only while the lock is held: the file of a dead agent stays.
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
# agents before this format read the first 20 bytes, and only the pid
_PID_WIDTH = 19


class Holder(NamedTuple):
    """The agent that holds the lock."""

    pid: int
    url: str = ""  # "" before the agent serves
    certificate: str = ""  # "" without TLS


def format_holder(holder: Holder) -> bytes:
    return f"{holder.pid:<{_PID_WIDTH}}\n{holder.url}\n{holder.certificate}\n".encode()


def parse_holder(data: bytes) -> Holder | None:
    """None if the data contain no pid."""
    lines = data.decode(errors="replace").split("\n")
    pid, url, certificate, *_ = *lines, "", "", ""
    return Holder(int(pid), url, certificate) if pid.strip().isdecimal() else None


class FolderLock:
    """An acquired lock; released by ``close`` or when the process exits."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def announce(self, url: str, certificate: str) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, format_holder(Holder(os.getpid(), url, certificate)), 0)

    def close(self) -> None:
        os.close(self._fd)


def acquire(folder: HeldFolder) -> FolderLock | Holder | None:
    """The lock, or the agent that holds it; None if that is unknown at the moment.

    Raises OSError if the name is used by something that is no regular file.
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
        holder = parse_holder(os.pread(fd, MAX_BYTES, 0))
        os.close(fd)
        return holder
    named = folder.status(LOCK_NAME)
    if named is None or named.st_ino != found.st_ino:  # replaced meanwhile
        os.close(fd)
        return None
    return FolderLock(fd)


def _replaced(folder: HeldFolder) -> FolderLock | Holder | None:
    """Acquire the lock in a folder of another user, where no existing file may be written to.

    A lock file that no agent holds is replaced by a new one, which the folder's owner can read.
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
    """(holder named in the lock file, whether this user wrote it), for readers without the lock."""
    try:
        fd = open_regular(os.path.join(directory, LOCK_NAME))
    except OSError:
        return None, False
    try:
        data, owner = os.pread(fd, MAX_BYTES, 0), os.fstat(fd).st_uid
        return parse_holder(data), owner == os.getuid()
    finally:
        os.close(fd)
