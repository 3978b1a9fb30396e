"""Finds the logs of a process into which no guest may be loaded.

Files are only read, and no thread is stopped. What this process may not read is reported, so that
nobody mistakes it for absent.
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
from dfx_agent.attach.processes import HostProcess
from dfx_agent.attach.programs import output_folder
from dfx_agent.base import boot_clock

METHOD = "passive"

# variables with the folders into which frameworks and trackers write
VARIABLES = (
    "TENSORBOARD_DIR", "TENSORBOARD_LOGDIR", "TENSORBOARD_LOGGING_DIR", "VERL_FILE_LOGGER_PATH",
    "VERL_FILE_LOGGER_ROOT", "WANDB_DIR", "OUTPUT_DIR", "LOGGING_DIR", "LOG_DIR", "LOGDIR",
)  # fmt: skip
_OPTION = re.compile(r"[-+\w.]*(?:output|logging|log|local|tensorboard)_?dir", re.IGNORECASE)
_LOG_NAME = re.compile(r"tfevents|\.jsonl$|\.log$|^trainer_state\.json$")
_MAX_DEPTH, _MAX_ENTRIES = 4, 2000
_MAX_LOG_BYTES = 256 << 20  # a log is read completely whenever it has grown
_STANDARD_STREAMS = frozenset({"1", "2"})
OPEN_FILES, ENVIRONMENT, FOLDER = "open files", "environment", "working folder"


class ReadableLogs(NamedTuple):
    """What this agent may read of one process."""

    logs: tuple[str, ...]
    """Paths as the agent sees them: open files first, then the latest first."""
    unreadable: tuple[str, ...]
    """What the agent may not read."""
    too_large: tuple[str, ...]
    """Logs above 256 MiB."""
    cut: tuple[str, ...]
    """Folders in which only the first 2,000 entries were examined."""
    has_stack: bool
    """Whether the memory may be read, as py-spy does."""
    remedy: str
    """What would make more readable; "" if nothing would."""


def find_logs(process: HostProcess) -> ReadableLogs:
    """Find the logs of a process. Missing rights and an exit of the process raise nothing."""
    search = _Search(process)
    search.run()
    has_stack = _may_read_memory(process.pid)
    remedy = "" if has_stack and not search.unreadable else _remedy(process.pid)
    return ReadableLogs(
        tuple(search.found.values()),
        tuple(search.unreadable),
        tuple(search.too_large),
        tuple(search.cut),
        has_stack,
        remedy,
    )


class _Search:
    """One search for the logs of one process."""

    def __init__(self, process: HostProcess) -> None:
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
        latest_first = sorted(set(self._written()), reverse=True)
        for _, path in latest_first:
            self._add(path)

    def _written(self) -> Iterator[tuple[float, str]]:
        """Yield (modification time, path) of logs in the folders that the process writes to."""
        for path in dict.fromkeys(self._places()):
            if os.path.isfile(path):
                yield from self._of_this_run(path)
            elif os.path.isdir(path):
                for log in self._below(path):
                    yield from self._of_this_run(log)

    def _places(self) -> Iterator[str]:
        process, folder = self._process, self._process.folder
        given = [*self._from_environment(), *_from_command_line(process.words)]
        if output := output_folder(process):
            given.append(output)
        if not folder:
            self.unreadable.append(FOLDER)
        for place in given:
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
        """Yield the file unless it is older than the process: a data set, a log of another run."""
        with suppress(OSError):
            modified = os.stat(path).st_mtime
            if boot_clock.is_modified_since(modified, self._process.start_ticks):
                yield modified, path

    def _add(self, path: str) -> None:
        with suppress(OSError):
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or not os.access(path, os.R_OK):
                return
            if status.st_size > _MAX_LOG_BYTES:
                self.too_large.append(path)
            else:
                self.found.setdefault((status.st_dev, status.st_ino), path)

    def _seen(self, path: str) -> str:
        """A path of the process as the agent sees it; a container has its own file system."""
        own = os.stat("/proc/self/ns/mnt").st_ino
        if self._process.mount_namespace in {0, own}:
            return path
        return f"/proc/{self._process.pid}/root{path}"


def _open_files(pid: int) -> Iterator[str]:
    """Logs open for writing, and files that receive the output. Raises OSError if hidden.

    Root may list the open files of a process whose memory it may not read.
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
            folder = value if is_joined else following
            if (is_joined or name.startswith("-")) and folder and not folder.startswith("-"):
                yield folder


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)


def _may_read_memory(pid: int) -> bool:
    """Check the same rights that py-spy needs; nothing is read."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _remedy(pid: int) -> str:
    try:
        return access.refusal(pid, access.read_facts(pid)).remedy
    except OSError:
        return ""
