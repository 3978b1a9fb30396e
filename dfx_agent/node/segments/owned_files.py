"""Folders accessed by descriptor: segment folders, and folders for the agent's own state.

An agent of root may read a folder that another user owns and fills. There it only opens regular
files, follows no link, waits for no pipe, and stores nothing: its state is in root's own folder. A
path may be changed at any moment, so all access uses the descriptor of the folder.
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
    """An open folder. ``is_own``: no other user can change its content."""

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
        """Status of a file, without following a link; None if it is not available."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None

    def read(self, name: str, max_bytes: int = MAX_BYTES) -> bytes:
        """At most ``max_bytes`` of a regular file. Raises OSError for anything else."""
        return _read(open_regular(name, self.fd), max_bytes)

    def read_text(self, name: str, max_bytes: int) -> str:
        """At most ``max_bytes`` of a regular file as text; "" if it cannot be read."""
        try:
            return self.read(name, max_bytes).decode("utf-8", "replace")
        except OSError:
            return ""

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically, readable only by us. OSError in other users' folders too."""
        if not self.is_own:
            raise PermissionError(f"{self.path} belongs to uid {self.uid}: nothing is stored there")
        unfinished = f"{name}.{os.urandom(4).hex()}{_UNFINISHED}"
        try:
            self.create(unfinished, data)  # a full file system leaves an incomplete file
            os.rename(unfinished, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError:
            self.remove(unfinished)
            raise

    def hand_over(self, name: str, to: HeldFolder, new_name: str) -> None:
        """Move a file into another own folder. OSError if either folder is not our own."""
        if not (self.is_own and to.is_own):
            raise PermissionError(f"{self.path} and {to.path} are not both ours")
        os.rename(name, new_name, src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def create(self, name: str, data: bytes = b"") -> None:
        """Create a new file; fails if the name exists, and follows no link."""
        with os.fdopen(self.open_new(name), "wb") as file:
            file.write(data)

    def open_new(self, name: str) -> int:
        """Descriptor of a new file. Raises OSError if the name exists."""
        return os.open(name, _CREATE, 0o600, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self.fd)

    def list_latest_first(self, suffix: str) -> list[tuple[float, str]]:
        """(Unix time of the last change, name), latest first; removes our incomplete files."""
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
        """A subfolder with mode 0700, created if needed. SegmentError if it is not our own."""
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
    """Open a segment folder: our own, created if needed, or for root that of another user.

    Raises SegmentError if others may write to it, or if its name and its owner do not match.
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
    """Open a folder for a single read. OSError if there is none."""
    return HeldFolder(path, _open_directory(path), is_own=False)


def open_state(path: str) -> HeldFolder:
    """Open the folder for the state of the agent that reads ``path``; always our own."""
    state = state_directory(path)
    return HeldFolder(state, open_own_directory(state), is_own=True)


def state_directory(path: str) -> str:
    """``path`` itself if it is our own; else a folder within our own folder."""
    if not _is_of_others(path):
        return path
    digest = hashlib.sha256(os.path.abspath(path).encode("utf-8", "surrogateescape")).hexdigest()
    return os.path.join(own_directory(), "observed", digest[:16])


def read_file(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """At most ``max_bytes`` of a regular file. Raises OSError for anything else."""
    return _read(open_regular(os.fspath(path)), max_bytes)


def create_for(path: str, uid: int) -> None:
    """Create a segment folder for user ``uid``, if there is none. Root only. Raises OSError."""
    parent, name = os.path.split(os.path.normpath(path))
    around = _open_directory(parent)
    try:
        os.mkdir(name, 0o700, dir_fd=around)
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=around)
        try:
            if os.fstat(fd).st_uid == os.getuid():  # else the user has created it meanwhile
                os.fchown(fd, uid, -1)
        finally:
            os.close(fd)
    except FileExistsError:
        return
    finally:
        os.close(around)


def _is_of_others(path: str) -> bool:
    """Whether root looks at another user's folder or at another mount namespace."""
    if os.getuid() != 0:
        return False
    if _OTHER_ROOT.fullmatch(os.path.normpath(path)):
        return True
    try:
        return os.stat(os.path.normpath(path), follow_symlinks=False).st_uid != 0
    except OSError:
        return False


def _open_directory(path: str) -> int:
    """Open a directory. In another mount namespace each part is opened by itself: no links."""
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
