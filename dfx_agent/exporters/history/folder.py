"""The folder with the files of all runs: where it is, who may write to it, what is removed."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from dfx_agent.base.errors import ConfigError

SUFFIX = ".sqlite"
OFF = "off"
_IN_MEMORY = re.compile(r"/(dev/shm|run/shm)(/|$)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_LETTERS = 120
_DAY_SECONDS = 86400.0
# SQLite's WAL needs memory that all readers share, which these file systems do not have
_NETWORK = re.compile(r"nfs\d?|cifs|smb\d?|lustre|beegfs|gpfs|ceph|9p|afs|glusterfs|fuse\..*")


def directory_of(setting: str) -> str | None:
    """The folder that the setting ``history_directory`` names; None if history is off.

    ConfigError for a folder in memory, which belongs to the job.
    """
    if setting == OFF:
        return None
    path = os.path.abspath(os.path.expanduser(setting)) if setting else _default()
    if _IN_MEMORY.match(os.path.realpath(path)):
        raise ConfigError(f"history_directory {path} is in memory: name a folder on a disk")
    return path


def _default() -> str:
    """``$XDG_STATE_HOME/dfx-agent/runs``, by default in ~/.local/state."""
    home = pwd.getpwuid(0).pw_dir if os.getuid() == 0 else os.path.expanduser("~")
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state")
    return os.path.join(state, "dfx-agent", "runs")


def prepare(path: str) -> None:
    """Create the folder with mode 0700. OSError unless it is ours and only we can write to it.

    This holds for root too: nothing is written to a folder of another user.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} is not a private folder of uid {os.getuid()}")


def journal_mode(path: str, mounts: str = "/proc/self/mounts") -> str:
    """How SQLite makes writes atomic there: WAL on a local disk, a journal on a network."""
    return "DELETE" if _NETWORK.fullmatch(_file_system(path, mounts)) else "WAL"


def _file_system(path: str, mounts: str) -> str:
    """Type of the file system with this folder; "" if it is unknown."""
    real, found = os.path.realpath(path), ("", "")
    with suppress(OSError), open(mounts, encoding="utf-8", errors="replace") as file:
        for line in file:
            _, point, kind, *_ = line.split()
            point = point.replace("\\040", " ")
            is_above = real == point or real.startswith(point.rstrip("/") + "/")
            if is_above and len(point) >= len(found[0]):
                found = point, kind
    return found[1]


def file_name(run: str, begin_seconds: float, taken_names: Collection[str]) -> str:
    """``RUN-YYYYMMDDTHHMMSS.sqlite`` (UTC), with a number if this name is in use."""
    stem = f"{prefix_of(run)}{time.strftime('%Y%m%dT%H%M%S', time.gmtime(begin_seconds))}"
    numbers = (f"{stem}.{number}" for number in range(2, 1000))
    stem = next(s for s in (stem, *numbers) if s + SUFFIX not in taken_names)
    return stem + SUFFIX


def prefix_of(run: str) -> str:
    """How the names of all files of this run begin."""
    return f"{_UNSAFE.sub('_', run).lstrip('.')[:_MOST_LETTERS] or 'run'}-"


def paths(directory: str, prefix: str = "") -> list[str]:
    """Files of runs, those with the latest change first. OSError if the folder is unreadable."""
    found = []
    for entry in os.scandir(directory):
        is_file = entry.name.startswith(prefix) and entry.name.endswith(SUFFIX)
        if is_file and entry.is_file(follow_symlinks=False):
            with suppress(OSError):
                found.append((_changed_seconds(entry.path), entry.path))
    return [path for _, path in sorted(found, reverse=True)]


def remove_old(
    directory: str, max_days: float, max_bytes: int, in_use: Collection[str], now_seconds: float
) -> list[str]:
    """Remove files that are too old, then the oldest until the rest fits. Returns their paths.

    Files ``in_use`` are counted, but never removed. OSError if the folder is unreadable.
    """
    total, removed = 0, []
    for path in sorted(paths(directory), key=lambda path: path not in in_use):
        num_bytes = sum(_size(part) for part in _parts(path))
        is_old = now_seconds - _changed_seconds(path) > max_days * _DAY_SECONDS
        if path not in in_use and (is_old or total + num_bytes > max_bytes):
            for part in _parts(path):
                with suppress(OSError):
                    os.unlink(part)
            removed.append(path)
        else:
            total += num_bytes
    return removed


def _parts(path: str) -> Iterable[str]:
    """A file of SQLite and the files that it has while it is open."""
    return path, f"{path}-wal", f"{path}-shm", f"{path}-journal"


def _changed_seconds(path: str) -> float:
    """Latest change of the run: of its file, or of what was not yet moved into it."""
    changes = [Path(path).stat().st_mtime]
    with suppress(OSError):
        changes.append(Path(f"{path}-wal").stat().st_mtime)
    return max(changes)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def free_bytes(directory: str) -> int:
    """Bytes that this user may still write there. OSError."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
