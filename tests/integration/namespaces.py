"""Hosts of a job as namespaces of this machine, joined by a switch.

Each has a network, processes, /dev/shm, a name and /etc/hosts of its own, and clocks of its own
where asked for. The switch is a bridge in a namespace of its own; we are on it too, with an address
that hosts reach. Nothing is left when the processes that hold them end.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from live_processes import Started, job_environment, started, until

_KINDS = ("mount", "uts", "ipc", "net", "pid")
# pid 1 of the host: sh collects what is left to it
_INIT = """
hostname "$1" && mount -t tmpfs -o size=256m shm /dev/shm && mount --bind "$2" /etc/hosts &&
ip link set lo up && echo ready || exit 1
sleep infinity & wait
"""
_SHIFT = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += SECONDS;
    return failed;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@functools.cache
def missing() -> str:
    """Why there can be no hosts here; "" where there can."""
    for program in ("ip", "unshare", "nsenter", "setpriv"):
        if shutil.which(program) is None:
            return f"no {program} on PATH; Debian: apt-get install iproute2 util-linux"
    tried = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--time", "--fork",
             "ip", "link", "add", "name", "lan", "type", "bridge"]  # fmt: skip
    done = subprocess.run(tried, check=False, capture_output=True, text=True, timeout=30)
    result = " ".join(done.stderr.split())[:200]
    return f"no right to make namespaces and a bridge: {result}" if done.returncode else ""


needs_hosts = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


class Host:
    """``address``: its own; ``here``: ours, as it reaches us. Its pids are seen from here."""

    def __init__(self, name: str, holder: Started, folder: Path) -> None:
        self.name, self.address, self.here = name, "", ""
        (init,) = until(holder.descendants, f"pid 1 of {name}")[:1]
        self.pid = init.pid
        self._folder = folder
        self._preload = ""
        self._time = Path(f"/proc/{self.pid}/ns/time").readlink()
        self._pids = Path(f"/proc/{self.pid}/ns/pid").readlink()

    def command(self, command: Sequence[str]) -> list[str]:
        """What runs ``command`` there."""
        has_time = self._time != Path("/proc/self/ns/time").readlink()
        kinds = [*_KINDS, "time"] if has_time else _KINDS
        enter = ["nsenter", f"--target={self.pid}", *(f"--{kind}" for kind in kinds)]
        return [*enter, "sh", "-c", f'cd {self._folder} && exec "$@"', "sh", *command]

    @contextmanager
    def started(
        self, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Iterator[Started]:
        """``command`` running there; nothing of it lives afterwards."""
        known = job_environment(**(env or {}))
        known |= {"LD_PRELOAD": self._preload} if self._preload else {}
        with started(self.command(command), self._folder, known) as process:
            yield process

    def set_link(self, *, is_up: bool) -> None:
        """Its cable."""
        _in_network(self.pid, "link", "set", "eth0", "up" if is_up else "down")

    def set_route(self, address: str, *, is_open: bool) -> None:
        """To one other host alone: what is sent there is lost, also every answer."""
        _in_network(self.pid, "route", "del" if is_open else "add", "blackhole", f"{address}/32")

    def set_wall_clock(self, seconds: int) -> None:
        """Ahead by so much, for what is started from here on; files have the kernel's times.

        No namespace has a wall clock: programs are given another one before the C library's.
        """
        source, library = self._folder / "shift.c", self._folder / f"shift{seconds}.so"
        source.write_text(_SHIFT.replace("SECONDS", str(seconds)))
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True
        )
        self._preload = str(library)

    def ranks(self) -> dict[int, psutil.Process]:
        """Processes of the job by rank."""
        found = {}
        for process in psutil.process_iter():
            try:
                if Path(f"/proc/{process.pid}/ns/pid").readlink() != self._pids:
                    continue
                rank = process.environ().get("RANK", "")
                if rank and "LOCAL_RANK" in process.environ():
                    found.setdefault(int(rank), process)
            except (OSError, psutil.Error):
                continue
        return found


@contextmanager
def hosts(
    folder: Path, *names: str, ahead: Mapping[str, int] | None = None
) -> Iterator[list[Host]]:
    """Up and reaching each other by name. ``ahead``: seconds by which a monotonic clock is."""
    net = f"10.{128 + os.getpid() % 127}.{os.getpid() // 127 % 256}"
    known = [f"127.0.0.1 localhost\n{net}.1 here\n"]
    known += [f"{net}.{number} {name}\n" for number, name in enumerate(names, 2)]
    table = folder / "hosts"
    table.write_text("".join(known))
    with ExitStack() as stack:
        switch = _held(stack, folder, "switch", table, 0)
        for command in ("add lan type bridge forward_delay 0", "set lan up"):
            _in_network(switch.pid, "link", *command.split())
        mine = f"dfx{os.getpid()}"
        _plug(switch.pid, os.getpid(), mine, f"{net}.1")
        found = []
        for number, name in enumerate(names, 2):
            host = _held(stack, folder, name, table, (ahead or {}).get(name, 0))
            host.address, host.here = f"{net}.{number}", f"{net}.1"
            _plug(switch.pid, host.pid, "eth0", host.address)
            found.append(host)
        yield found


def _held(stack: ExitStack, folder: Path, name: str, table: Path, ahead: int) -> Host:
    own = folder / name
    own.mkdir(exist_ok=True)
    clocks = ["--time", f"--monotonic={ahead}", f"--boottime={ahead}"] if ahead else []
    command = [
        "setpriv", "--pdeathsig=KILL", "unshare", *(f"--{kind}" for kind in _KINDS), *clocks,
        "--fork", "--kill-child", "--mount-proc", "sh", "-c", _INIT, "sh", name, str(table),
    ]  # fmt: skip
    holder = stack.enter_context(started(command, own))

    def is_ready() -> bool:
        assert holder.popen.poll() is None, holder.errors
        return "ready" in holder.output

    until(is_ready, f"host {name}")
    return Host(name, holder, own)


def _plug(switch: int, pid: int, name: str, address: str) -> None:
    """A cable from the switch into the network of a process."""
    port = f"p{pid}"
    words = f"link add {name} netns {pid} type veth peer name {port} netns {switch}"
    subprocess.run(["ip", *words.split()], check=True)
    _in_network(switch, "link", "set", port, "master", "lan", "up")
    _in_network(pid, "addr", "add", f"{address}/24", "dev", name)
    _in_network(pid, "link", "set", name, "up")


def _in_network(pid: int, *words: str) -> None:
    subprocess.run(["nsenter", f"--target={pid}", "--net", "ip", *words], check=True)
