"""Which engines belong to a job: started by it, or called by it, on this machine.

A port is never asked at a guess: a stranger's bytes can break a rendezvous of torch or NCCL. Asked
is what a command line names as a server's port, and of the job's own processes that have vLLM or
SGLang loaded and train nothing, where they listen. What answers without metrics of an engine is
not asked again for 15 s, then for twice as long each time, up to 10 minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from dfx_agent.node.engines.command_lines import Served, is_engine, is_worker, served_by
from dfx_agent.node.engines.endpoint import Found
from dfx_agent.node.host.processes import (
    ProcessEntry,
    command_line,
    environment_value,
    has_mapped,
    process_table,
)
from dfx_agent.node.host.sockets import Address, Sockets, inodes_of, sockets
from dfx_agent.snapshot import EngineOrigin

# run -> pid -> role of its ranks that live
Jobs = Mapping[str, Mapping[int, str]]

MAX_PROBES = 8
_MAX_FAMILY = 512
_FIRST_REST_SECONDS = 15.0
_LONGEST_REST_SECONDS = 600.0
_MAX_REMEMBERED = 4096
# a young process may be about to become another program
_MAX_READS = 3
_LIBRARIES = (b"/vllm/", b"/sgl_kernel/", b"/sglang/")
# ranks of these roles may serve; all others train, and what they listen on is their peers'
SERVING_ROLES = frozenset({"rollout"})
_RAYLET = "raylet"


class Rests:
    """What was asked in vain, and when it may be asked again."""

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, float]] = {}

    def may_ask(self, what: object, at: float) -> bool:
        return at >= self._due.get(what, (0.0, 0.0))[0]

    def was_in_vain(self, what: object, at: float) -> None:
        if len(self._due) >= _MAX_REMEMBERED:
            self._due.clear()
        rest = self._due.get(what, (0.0, _FIRST_REST_SECONDS / 2))[1] * 2
        rest = min(rest, _LONGEST_REST_SECONDS)
        self._due[what] = at + rest, rest


class Discovery:
    """Remembers what it has looked through."""

    def __init__(self) -> None:
        self._rests = Rests()
        # process -> what it serves, and how often that was read
        self._servers: dict[tuple[int, int], tuple[Served | None, int]] = {}

    def look(
        self, jobs: Jobs, own_pid: int, at: float, known: Container[str] = ()
    ) -> tuple[list[Found], list[Found]]:
        """(engines that are sure, places that have to be asked whether they are one).

        ``known``: URLs that are read already.
        """
        table = process_table()
        told = self._told(table)
        sure: dict[str, Found] = {}
        maybe: list[Found] = []
        open_sockets: list[Sockets] = []

        def net() -> Sockets:
            """Read once a round, and only where it is asked for."""
            if not open_sockets:
                open_sockets.append(sockets())
            return open_sockets[0]

        for run, ranks in sorted(jobs.items()):
            if not ranks:
                continue
            members = family(table, ranks, own_pid, _is_raylet)
            for pid, served in told.items():
                if pid in members:
                    _claim(sure, run, served, pid, "command line")
            for pid, served in _called(told, members, net) if told.keys() - members else ():
                _claim(sure, run, served, pid, "called")
            maybe += self._listening(table, run, ranks, members - told.keys(), net, at)
        unknown = [found for found in maybe if found.url not in sure and found.url not in known]
        return list(sure.values()), unknown[:MAX_PROBES]

    def was_in_vain(self, found: Found, at: float) -> None:
        """It was asked, and is no engine."""
        self._rests.was_in_vain((found.pid, found.url), at)

    def _told(self, table: Mapping[int, ProcessEntry]) -> dict[int, Served]:
        """By command line; of processes that name one port the first, which is the parent."""
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
    ) -> Iterator[Found]:
        for pid in sorted(members):
            key = pid, table[pid].start_ticks
            if ranks.get(pid, "rollout") not in SERVING_ROLES:
                continue
            if not self._rests.may_ask(key, at):
                continue
            if not _has_engine(pid):
                self._rests.was_in_vain(key, at)
                continue
            rendezvous = environment_value(pid, "MASTER_PORT")
            for address in listened_on(pid, net()):
                url = Served(address.host, address.port).url
                if str(address.port) != rendezvous and self._rests.may_ask((pid, url), at):
                    yield Found(url, run, "socket", pid)


def _claim(
    sure: dict[str, Found], run: str, served: Served, pid: int, origin: EngineOrigin
) -> None:
    """An engine belongs to one run: whoever started it, else who calls it."""
    before = sure.get(served.url)
    if before is None or (before.origin == "called" and origin != "called"):
        sure[served.url] = Found(served.url, run, origin, pid, served.pd)


def family(
    table: Mapping[int, ProcessEntry],
    ranks: Iterable[int],
    own_pid: int,
    is_raylet: Callable[[int], bool],
) -> set[int]:
    """Pids of the job: its ranks, what they started, and what was started with them.

    With them: in the process group of a rank or of its parent, so by one command or script; and
    beside a worker of Ray, whose parent starts all.
    """
    begun = {pid for pid in ranks if pid in table}
    parents = {table[pid].parent for pid in begun} - {0, 1, own_pid}
    groups = {table[pid].group for pid in begun | (parents & table.keys())} - {0}
    # a parent may be a terminal's shell, which has other jobs, too
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
    found = {net.listening[inode] for inode in inodes_of(pid) if inode in net.listening}
    return sorted(found)


def _called(
    told: Mapping[int, Served], members: set[int], net: Callable[[], Sockets]
) -> Iterator[tuple[int, Served]]:
    """Servers of this machine, not the job's own, that it is connected to now."""
    here = {own for own, _ in net().connected.values()}
    ends = set()
    for pid in members:
        for inode in inodes_of(pid):
            connection = net().connected.get(inode)
            if connection is not None and connection[1] in here:
                ends.add(connection[1].port)
    for pid, served in told.items():
        if pid not in members and served.port in ends:
            yield pid, served
