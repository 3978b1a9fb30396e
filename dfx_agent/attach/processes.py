"""All processes of this machine: read once, then only the new ones.

A process is identified by pid and start time. Command line and environment identify its program
after exec, so young processes are read again.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dfx_agent.base.boot_clock import SECONDS_PER_TICK, seconds_since_boot

_SETTLED_SECONDS = 1.0
_KERNEL_THREADS = 2  # their parent
# of thousands of processes, only the variables of launchers are stored
_OF_LAUNCHERS = (
    b"RANK=", b"LOCAL_RANK=", b"WORLD_SIZE=", b"MASTER_", b"TORCHELASTIC_RUN_ID=", b"OMPI_", b"PMI",
    b"SLURM_", b"RAY_", b"DFX_",
)  # fmt: skip


@dataclass(frozen=True)
class HostProcess:
    """One process of this machine. Parts that may not be read are empty."""

    pid: int
    start_ticks: int
    parent: int = field(compare=False)
    name: str = field(compare=False)

    @functools.cached_property
    def words(self) -> tuple[str, ...]:
        """The command line."""
        words = _read(self.pid, "cmdline").rstrip(b"\0").split(b"\0")
        return tuple(word.decode("utf-8", "replace") for word in words if word)

    @functools.cached_property
    def environment(self) -> Mapping[str, str]:
        """Variables that launchers set, as they were at the start of the program."""
        entries = _read(self.pid, "environ").split(b"\0")
        texts = (e.decode("utf-8", "replace") for e in entries if e.startswith(_OF_LAUNCHERS))
        return {name: value for name, _, value in (text.partition("=") for text in texts)}

    @functools.cached_property
    def is_python(self) -> bool:
        try:
            program = os.readlink(f"/proc/{self.pid}/exe")
        except OSError:
            program = self.words[0] if self.words else ""
        return os.path.basename(program).startswith("python")

    @functools.cached_property
    def folder(self) -> str:
        """The working folder."""
        try:
            return os.readlink(f"/proc/{self.pid}/cwd")
        except OSError:
            return ""

    @functools.cached_property
    def uid(self) -> int:
        """Owner of the process; root for a process that others may not access."""
        try:
            return os.stat(f"/proc/{self.pid}").st_uid
        except OSError:
            return os.getuid()

    @property
    def current_name(self) -> str:
        """``name`` as it is now; "" if the process has exited."""
        return _read(self.pid, "comm").decode("utf-8", "replace").strip()

    @functools.cached_property
    def mount_namespace(self) -> int:
        """Inode of its mount namespace; 0 if it may not be read."""
        try:
            return os.stat(f"/proc/{self.pid}/ns/mnt").st_ino
        except OSError:
            return 0

    @functools.cached_property
    def inner_pid(self) -> int:
        """Pid of the process in its own pid namespace."""
        for line in _read(self.pid, "status").splitlines():
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
        return self.pid

    def has_mapped(self, library: str) -> bool:
        """Whether a file of this name is mapped in its memory now."""
        return library.encode() in _read(self.pid, "maps")

    def is_alive(self) -> bool:
        """Whether this very process runs; False for a zombie."""
        fields = _stat(self.pid)
        return fields is not None and fields[0] not in "ZX" and fields[2] == self.start_ticks


class ProcessTable:
    """pid -> process. A new process costs about 0.1 ms to read."""

    def __init__(self) -> None:
        self._by_pid: dict[int, HostProcess] = {}
        self._settled: set[int] = set()
        self.refresh()

    def refresh(self) -> None:
        """Drop exited processes; read new ones, and those that were still starting."""
        now = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        for pid in self._by_pid.keys() - now:
            del self._by_pid[pid]
        self._settled &= now
        now_seconds = seconds_since_boot()
        for pid in now - self._settled:
            self._read(pid, now_seconds)

    def __iter__(self) -> Iterator[HostProcess]:
        return iter(list(self._by_pid.values()))

    def get(self, pid: int) -> HostProcess | None:
        return self._by_pid.get(pid)

    def ancestors(self, process: HostProcess) -> Iterator[HostProcess]:
        """Parent, its parent, ..."""
        while parent := self._by_pid.get(process.parent):
            if parent.start_ticks > process.start_ticks or parent.pid == process.pid:
                return  # the parent has exited, and its pid was reused
            yield parent
            process = parent

    def family(self, root: HostProcess) -> list[HostProcess]:
        """``root`` and its descendants, parents before children."""
        children: dict[int, list[HostProcess]] = {}
        for process in self:
            children.setdefault(process.parent, []).append(process)
        found, reached = [root], {root.pid}
        for process in found:
            new = [child for child in children.get(process.pid, ()) if child.pid not in reached]
            reached.update(child.pid for child in new)
            found.extend(new)
        return found

    def _read(self, pid: int, now_seconds: float) -> None:
        fields = _stat(pid)
        if fields is None:
            self._by_pid.pop(pid, None)
            return
        state, parent, start_ticks, name = fields
        if state not in "ZX" and parent != _KERNEL_THREADS:
            self._by_pid[pid] = HostProcess(pid, start_ticks, parent, name)
        if now_seconds - start_ticks * SECONDS_PER_TICK > _SETTLED_SECONDS:
            self._settled.add(pid)


def is_zombie(pid: int) -> bool:
    """Whether it has exited and its parent has not waited for it."""
    fields = _stat(pid)
    return fields is not None and fields[0] in "ZX"


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _stat(pid: int) -> tuple[str, int, int, str] | None:
    """State, parent, start ticks, name."""
    head, _, rest = _read(pid, "stat").rpartition(b")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return fields[0].decode(), int(fields[1]), int(fields[19]), name
