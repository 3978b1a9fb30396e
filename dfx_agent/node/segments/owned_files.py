"""Folders by descriptor: those of others are read with suspicion, those of ours hold our state.

Root's agent may look into a folder that somebody else owns and fills. There it opens regular files
only, follows no link, waits for no pipe, and keeps nothing: its state is in root's own folder. What
a path leads to may change at any moment, so everything goes by the descriptor of the folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path

from dfx_agent.wire.segment import (
    DIRECTORY_FLAGS,
    SegmentError,
    not_private,
    open_own_directory,
    open_regular,
    own_directory,
)

MAX_BYTES = 4 << 20

_UNFINISHED = ".tmp"
_ABANDONED_SECONDS = 60.0
# the folder of one user as `own_directory` names it
_OF_USER = re.compile(r"/(?:dev/shm|tmp)/dfx-(\d+)")
_OTHER_ROOT = re.compile(r"(/proc/\d+/root)(/.*)")


class HeldFolder:
    """A folder that is open. ``is_own``: nobody else can change what is in it."""

    def __init__(self, path: str, fd: int, *, is_own: bool) -> None:
        self.path = path
        self.fd = fd
        self.is_own = is_own
        status = os.fstat(fd)
        self.uid = status.st_uid
        self.id = status.st_dev, status.st_ino

    def close(self) -> None:
        os.close(self.fd)

    def names(self) -> list[str]:
        return os.listdir(self.fd)

    def status(self, name: str) -> os.stat_result | None:
        """Of a link, not of what it leads to; None when it cannot be told."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None

    def read(self, name: str, max_bytes: int = MAX_BYTES) -> bytes:
        """At most ``max_bytes`` of a regular file, OSError when it is none."""
        return _read(open_regular(name, self.fd), max_bytes)

    def read_text(self, name: str, max_bytes: int) -> str:
        """The same as text; empty when it cannot be read."""
        try:
            return self.read(name, max_bytes).decode("utf-8", "replace")
        except OSError:
            return ""

    def write(self, name: str, data: bytes) -> None:
        """Replace a file in one go, readable by nobody else. OSError, also in others' folders."""
        if not self.is_own:
            raise PermissionError(f"{self.path} belongs to uid {self.uid}: nothing is kept there")
        unfinished = f"{name}.{os.urandom(4).hex()}{_UNFINISHED}"
        try:
            self.create(unfinished, data)  # a full file system leaves the part that had room
            os.rename(unfinished, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError:
            self.remove(unfinished)
            raise

    def hand_over(self, name: str, to: HeldFolder, new_name: str) -> None:
        """Move a file into another folder of ours. OSError, also from or into others' folders."""
        if not (self.is_own and to.is_own):
            raise PermissionError(f"{self.path} and {to.path} are not both ours")
        os.rename(name, new_name, src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def create(self, name: str, data: bytes = b"") -> None:
        """A file that was not there, under no link: of any folder it changes nothing else."""
        with os.fdopen(self.open_new(name), "wb") as file:
            file.write(data)

    def open_new(self, name: str) -> int:
        """A descriptor of a file that was not there. OSError."""
        return os.open(name, _CREATE, 0o600, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self.fd)

    def newest(self, suffix: str) -> list[tuple[float, str]]:
        """(when it changed, in Unix seconds; name), the newest first; our half-written ones go."""
        found = []
        for name in self.names():
            status = self.status(name)
            if status is None:
                continue
            age_seconds = time.time() - status.st_mtime
            if name.endswith(_UNFINISHED) and self.is_own and age_seconds > _ABANDONED_SECONDS:
                self.remove(name)
            elif name.endswith(suffix):
                found.append((status.st_mtime, name))
        return sorted(found, reverse=True)

    def own_folder(self, name: str) -> HeldFolder:
        """A folder of ours inside, created with mode 0700. SegmentError when it is not ours."""
        path = os.path.join(self.path, name)
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.fd)
            fd = os.open(name, DIRECTORY_FLAGS, dir_fd=self.fd)
        except OSError as error:
            raise SegmentError("folder", f"cannot use {path}: {error.strerror}") from None
        return _checked(HeldFolder(path, fd, is_own=True), os.getuid())


_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def open_observed(path: str) -> HeldFolder:
    """The folder of segments: ours, created where there is none, or for root one of a user.

    SegmentError when others may write to it, or when it has a user's name and another owner.
    """
    if not _is_of_others(path):
        return HeldFolder(path, open_own_directory(path), is_own=True)
    try:
        folder = HeldFolder(path, _open_directory(path), is_own=False)
    except OSError as error:
        raise SegmentError("folder", f"cannot use {path}: {error.strerror}") from None
    named = _OF_USER.fullmatch(os.path.normpath(path))
    return _checked(folder, int(named[1]) if named else folder.uid)


def open_existing(path: str) -> HeldFolder:
    """For those who look once: a folder to read in. OSError when there is none."""
    return HeldFolder(path, _open_directory(path), is_own=False)


def open_state(path: str) -> HeldFolder:
    """Where the agent of the segments in ``path`` keeps what it must not forget: ours alone."""
    state = state_directory(path)
    return HeldFolder(state, open_own_directory(state), is_own=True)


def state_directory(path: str) -> str:
    """``path`` itself where it is ours; for a folder of somebody else one in our own."""
    if not _is_of_others(path):
        return path
    digest = hashlib.sha256(os.path.abspath(path).encode("utf-8", "surrogateescape")).hexdigest()
    return os.path.join(own_directory(), "observed", digest[:16])


def read_file(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """For those who look once: at most ``max_bytes`` of a regular file. OSError when it is none."""
    return _read(open_regular(os.fspath(path)), max_bytes)


def create_for(path: str, uid: int) -> None:
    """Create a user's folder of segments for him, where there is none. Root only. OSError."""
    parent, name = os.path.split(os.path.normpath(path))
    around = _open_directory(parent)
    try:
        os.mkdir(name, 0o700, dir_fd=around)
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=around)
        try:
            if os.fstat(fd).st_uid == os.getuid():  # else somebody was faster, and has what is his
                os.fchown(fd, uid, -1)
        finally:
            os.close(fd)
    except FileExistsError:
        return
    finally:
        os.close(around)


def _is_of_others(path: str) -> bool:
    """Only root may look at what others own; another root's files may be anything."""
    if os.getuid() != 0:
        return False
    if _OTHER_ROOT.fullmatch(os.path.normpath(path)):
        return True
    try:
        return os.stat(os.path.normpath(path), follow_symlinks=False).st_uid != 0
    except OSError:
        return False


def _open_directory(path: str) -> int:
    """Of a process in another mount namespace part by part: a link there leads into ours."""
    path = os.path.normpath(path)
    other = _OTHER_ROOT.fullmatch(path)
    if other is None:
        return os.open(path, DIRECTORY_FLAGS)
    fd = os.open(other[1], DIRECTORY_FLAGS & ~os.O_NOFOLLOW)
    for part in filter(None, other[2].split("/")):
        try:
            inner = os.open(part, DIRECTORY_FLAGS, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _checked(folder: HeldFolder, uid: int) -> HeldFolder:
    status = os.fstat(folder.fd)
    if status.st_uid == uid and not status.st_mode & 0o022:
        return folder
    folder.close()
    if folder.is_own:
        raise not_private(folder.path)
    what = f"{folder.path} is not a private folder of uid {uid}"
    message = f"{what} (it belongs to uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o})"
    raise SegmentError("folder", message)


def _read(fd: int, max_bytes: int) -> bytes:
    with os.fdopen(fd, "rb", buffering=0) as file:
        return file.read(max_bytes)
