"""Finds the engines on this machine that a job started or is connected to.

A port is never probed at random: unexpected bytes can break a rendezvous of torch or NCCL. Only two
kinds of ports are probed: a server's port that a command line names, and listening ports of job
processes that have vLLM or SGLang loaded and do not train. A port without engine metrics is probed
again after 15 s, then after twice the time, up to 10 minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from dfx_agent.node.engines.command_lines import Served, is_engine, is_worker, served_by
from dfx_agent.node.engines.endpoint import FoundEngine
from dfx_agent.node.host.processes import (
    ProcessEntry,
    command_line,
    environment_value,
    has_mapped,
    process_table,
)
from dfx_agent.node.host.sockets import Address, Sockets, socket_inodes, sockets
from dfx_agent.snapshot import EngineOrigin

# run -> pid -> role of its live ranks
Jobs = Mapping[str, Mapping[int, str]]

MAX_PROBES = 8
_MAX_FAMILY = 512
_FIRST_PAUSE_SECONDS = 15.0
_LONGEST_PAUSE_SECONDS = 600.0
_MAX_REMEMBERED = 4096
# a young process may still exec another program
_MAX_READS = 3
_LIBRARIES = (b"/vllm/", b"/sgl_kernel/", b"/sglang/")
# ranks of these roles may serve; all other ranks train, and listen only for their peers
SERVING_ROLES = frozenset({"rollout"})
_RAYLET = "raylet"


class ProbePauses:
    """Targets that were probed without success, and when each may be probed again."""

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, float]] = {}

    def may_probe(self, target: object, at: float) -> bool:
        return at >= self._due.get(target, (0.0, 0.0))[0]

    def note_failure(self, target: object, at: float) -> None:
        if len(self._due) >= _MAX_REMEMBERED:
            self._due.clear()
        pause = self._due.get(target, (0.0, _FIRST_PAUSE_SECONDS / 2))[1] * 2
        pause = min(pause, _LONGEST_PAUSE_SECONDS)
        self._due[target] = at + pause, pause


class Discovery:
    """Finds engines, and caches what it has read about each process."""

    def __init__(self) -> None:
        self._pauses = ProbePauses()
        # (pid, start time) -> what the process serves, and how often that was read
        self._servers: dict[tuple[int, int], tuple[Served | None, int]] = {}

    def look(
        self, jobs: Jobs, own_pid: int, at: float, known_urls: Container[str] = ()
    ) -> tuple[list[FoundEngine], list[FoundEngine]]:
        """(certain engines, addresses that must be probed first).

        ``known_urls``: engines that are read already.
        """
        table = process_table()
        servers = self._find_servers(table)
        sure: dict[str, FoundEngine] = {}
        maybe: list[FoundEngine] = []
        open_sockets: list[Sockets] = []

        def net() -> Sockets:
            """Sockets of this machine, read once per round and only if needed."""
            if not open_sockets:
                open_sockets.append(sockets())
            return open_sockets[0]

        for run, ranks in sorted(jobs.items()):
            if not ranks:
                continue
            members = family(table, ranks, own_pid, _is_raylet)
            for pid, served in servers.items():
                if pid in members:
                    _claim(sure, run, served, pid, "command line")
            called = _called(servers, members, net) if servers.keys() - members else ()
            for pid, served in called:
                _claim(sure, run, served, pid, "called")
            maybe += self._listening(table, run, ranks, members - servers.keys(), net, at)
        unknown = [
            found for found in maybe if found.url not in sure and found.url not in known_urls
        ]
        return list(sure.values()), unknown[:MAX_PROBES]

    def note_failure(self, found: FoundEngine, at: float) -> None:
        """The address was probed and is no engine."""
        self._pauses.note_failure((found.pid, found.url), at)

    def _find_servers(self, table: Mapping[int, ProcessEntry]) -> dict[int, Served]:
        """Servers by pid. If several processes name one port, the first is used, the parent."""
        now: dict[tuple[int, int], tuple[Served | None, int]] = {}
        for entry in table.values():
            key = entry.pid, entry.start_ticks
            served, num_reads = self._servers.get(key, (None, 0))
            if served is None and num_reads < _MAX_READS:
                served, num_reads = served_by(command_line(entry.pid)), num_reads + 1
            now[key] = served, num_reads
        self._servers = now
        found: dict[int, Served] = {}
        urls: set[str] = set()
        for (pid, _), (served, _) in sorted(now.items(), key=lambda item: item[0]):
            if served is not None and served.url not in urls:
                urls.add(served.url)
                found[pid] = served
        return found

    def _listening(
        self,
        table: Mapping[int, ProcessEntry],
        run: str,
        ranks: Mapping[int, str],
        members: Iterable[int],
        net: Callable[[], Sockets],
        at: float,
    ) -> Iterator[FoundEngine]:
        for pid in sorted(members):
            key = pid, table[pid].start_ticks
            if ranks.get(pid, "rollout") not in SERVING_ROLES:
                continue
            if not self._pauses.may_probe(key, at):
                continue
            if not _has_engine(pid):
                self._pauses.note_failure(key, at)
                continue
            rendezvous = environment_value(pid, "MASTER_PORT")
            for address in listened_on(pid, net()):
                url = Served(address.host, address.port).url
                if str(address.port) != rendezvous and self._pauses.may_probe((pid, url), at):
                    yield FoundEngine(url, run, "socket", pid)


def _claim(
    sure: dict[str, FoundEngine], run: str, served: Served, pid: int, origin: EngineOrigin
) -> None:
    """Assign an engine to one run: to the run that started it, else to the run that calls it."""
    before = sure.get(served.url)
    if before is None or (before.origin == "called" and origin != "called"):
        sure[served.url] = FoundEngine(served.url, run, origin, pid, served.pd)


def family(
    table: Mapping[int, ProcessEntry],
    ranks: Iterable[int],
    own_pid: int,
    is_raylet: Callable[[int], bool],
) -> set[int]:
    """Pids of the job: its ranks, their descendants, and processes started together with them.

    Started together means in the process group of a rank or of its parent, so by one command or
    script; for Ray it means started by the same raylet.
    """
    begun = {pid for pid in ranks if pid in table}
    parents = {table[pid].parent for pid in begun} - {0, 1, own_pid}
    groups = {table[pid].group for pid in begun | (parents & table.keys())} - {0}
    # a parent may be a terminal's shell, which also runs other jobs
    begun |= {entry.pid for entry in table.values() if entry.group in groups} - parents
    begun |= {pid for pid in parents if is_raylet(pid)}
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    found: set[int] = set()
    waiting = sorted(begun - {own_pid})
    while waiting and len(found) < _MAX_FAMILY:
        pid = waiting.pop(0)
        if pid not in found and pid != own_pid:
            found.add(pid)
            waiting += children.get(pid, ())
    return found


def _is_raylet(pid: int) -> bool:
    argv = command_line(pid)
    return bool(argv) and argv[0].endswith(_RAYLET)


def _has_engine(pid: int) -> bool:
    argv = command_line(pid)
    return not is_worker(argv) and (is_engine(argv) or has_mapped(pid, _LIBRARIES))


def listened_on(pid: int, net: Sockets) -> list[Address]:
    found = {net.listening[inode] for inode in socket_inodes(pid) if inode in net.listening}
    return sorted(found)


def _called(
    servers: Mapping[int, Served], members: set[int], net: Callable[[], Sockets]
) -> Iterator[tuple[int, Served]]:
    """Servers of this machine outside the job that the job is connected to now."""
    local = {address for address, _ in net().connected.values()}
    ends = set()
    for pid in members:
        for inode in socket_inodes(pid):
            connection = net().connected.get(inode)
            if connection is not None and connection[1] in local:
                ends.add(connection[1].port)
    for pid, served in servers.items():
        if pid not in members and served.port in ends:
            yield pid, served
