"""What can be had of a process that nothing may be brought into: the logs that it writes.

Only read, never opened for writing, no thread stopped. What the reader's rights do not allow is
named, so that nobody takes it for absent.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from dfx_agent.attach import access
from dfx_agent.attach.processes import Process
from dfx_agent.attach.programs import output_folder
from dfx_agent.base import boot_clock

METHOD = "passive"

# where frameworks and trackers are told to write
VARIABLES = (
    "TENSORBOARD_DIR", "TENSORBOARD_LOGDIR", "TENSORBOARD_LOGGING_DIR", "VERL_FILE_LOGGER_PATH",
    "VERL_FILE_LOGGER_ROOT", "WANDB_DIR", "OUTPUT_DIR", "LOGGING_DIR", "LOG_DIR", "LOGDIR",
)  # fmt: skip
_OPTION = re.compile(r"[-+\w.]*(?:output|logging|log|local|tensorboard)_?dir", re.IGNORECASE)
_LOG_NAME = re.compile(r"tfevents|\.jsonl$|\.log$|^trainer_state\.json$")
_MAX_DEPTH, _MAX_ENTRIES = 4, 2000
_MAX_LOG_BYTES = 256 << 20  # a log is read anew whenever it has grown
_STANDARD_STREAMS = frozenset({"1", "2"})
OPEN_FILES, ENVIRONMENT, FOLDER = "open files", "environment", "working folder"


class Sight(NamedTuple):
    """What may be read of one process.

    ``logs`` are paths as we see them, those that it has open first, then the newest first.
    ``unreadable`` names what we may not look at, ``too_large`` logs beyond 256 MiB, ``cut``
    folders of which only the first 2,000 entries were looked at. ``has_stack``: its memory may be
    read, as py-spy does. ``remedy`` is the one thing that would show more, "" when there is none.
    """

    logs: tuple[str, ...]
    unreadable: tuple[str, ...]
    too_large: tuple[str, ...]
    cut: tuple[str, ...]
    has_stack: bool
    remedy: str


def look(process: Process) -> Sight:
    """Find the logs of a process; what may not be read, and what ends meanwhile, raises nothing."""
    search = _Search(process)
    search.run()
    has_stack = _may_read_memory(process.pid)
    remedy = "" if has_stack and not search.unreadable else _remedy(process.pid)
    return Sight(
        tuple(search.found.values()),
        tuple(search.unreadable),
        tuple(search.too_large),
        tuple(search.cut),
        has_stack,
        remedy,
    )


class _Search:
    """One look at one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        # (device, inode) -> path: a log may have several names
        self.found: dict[tuple[int, int], str] = {}
        self.unreadable: list[str] = []
        self.too_large: list[str] = []
        self.cut: list[str] = []

    def run(self) -> None:
        try:
            for path in _open_files(self._process.pid):
                self._add(self._seen(path))
        except OSError:
            self.unreadable.append(OPEN_FILES)
        newest = sorted(set(self._written()), reverse=True)
        for _, path in newest:
            self._add(path)

    def _written(self) -> Iterator[tuple[float, str]]:
        """(modification time, path) of logs in the folders that the process was told of."""
        for place in dict.fromkeys(self._places()):
            if os.path.isfile(place):
                yield from self._of_this_run(place)
            elif os.path.isdir(place):
                for path in self._below(place):
                    yield from self._of_this_run(path)

    def _places(self) -> Iterator[str]:
        process, folder = self._process, self._process.folder
        told = [*self._from_environment(), *_from_command_line(process.words)]
        if known := output_folder(process):
            told.append(known)
        if not folder:
            self.unreadable.append(FOLDER)
        for place in told:
            path = os.path.join(folder, place)
            if path.startswith("/"):
                yield self._seen(os.path.normpath(path))
        if folder:
            yield self._seen(folder)

    def _from_environment(self) -> list[str]:
        try:
            with open(f"/proc/{self._process.pid}/environ", "rb") as file:
                entries = file.read().decode("utf-8", "replace").split("\0")
        except OSError:
            self.unreadable.append(ENVIRONMENT)
            return []
        values = dict(entry.partition("=")[::2] for entry in entries)
        return [values[name] for name in VARIABLES if values.get(name)]

    def _below(self, folder: str) -> Iterator[str]:
        """Logs in the folder, shallow ones first."""
        waiting, num_entries = deque([(folder, 0)]), 0
        while waiting:
            inside, depth = waiting.popleft()
            for entry in _entries(inside):
                num_entries += 1
                if num_entries > _MAX_ENTRIES:
                    self.cut.append(folder)
                    return
                if _LOG_NAME.search(entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry.path
                elif depth < _MAX_DEPTH and _is_folder(entry):
                    waiting.append((entry.path, depth + 1))

    def _of_this_run(self, path: str) -> Iterator[tuple[float, str]]:
        """Nothing for what was last written before the process began: a data set, another run."""
        with suppress(OSError):
            modified = os.stat(path).st_mtime
            if boot_clock.is_modified_since(modified, self._process.start_ticks):
                yield modified, path

    def _add(self, path: str) -> None:
        with suppress(OSError):
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode) or not os.access(path, os.R_OK):
                return
            if found.st_size > _MAX_LOG_BYTES:
                self.too_large.append(path)
            else:
                self.found.setdefault((found.st_dev, found.st_ino), path)

    def _seen(self, path: str) -> str:
        """A path of the process as we see it: its file system may be another one (a container)."""
        own = os.stat("/proc/self/ns/mnt").st_ino
        if self._process.mount_namespace in {0, own}:
            return path
        return f"/proc/{self._process.pid}/root{path}"


def _open_files(pid: int) -> Iterator[str]:
    """Logs open for writing, and files that take the output. OSError when they are hidden.

    Root may list the folder of a process that it may not look into.
    """
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            path = os.readlink(f"/proc/{pid}/fd/{number}")
            is_log = number in _STANDARD_STREAMS or _LOG_NAME.search(os.path.basename(path))
            if path.startswith("/") and is_log and _is_written(pid, number):
                yield path


def _is_written(pid: int, number: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as lines:
        flags = next(line.split()[1] for line in lines if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _from_command_line(words: Iterable[str]) -> Iterator[str]:
    """Values of options such as ``--output_dir X``, ``--logging-dir=X``, ``trainer.log_dir=X``."""
    for word, following in pairwise((*words, "")):
        name, is_joined, value = word.partition("=")
        if _OPTION.fullmatch(name.replace("-", "_")):
            told = value if is_joined else following
            if (is_joined or name.startswith("-")) and told and not told.startswith("-"):
                yield told


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)


def _may_read_memory(pid: int) -> bool:
    """The kernel asks what it would ask py-spy; nothing is read."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _remedy(pid: int) -> str:
    try:
        return access.refusal(pid, access.facts(pid)).remedy
    except OSError:
        return ""
