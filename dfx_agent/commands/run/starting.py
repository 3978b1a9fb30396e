"""Ranks of the job under ``run`` that have started and written nothing yet.

Such ranks import their packages, or wait for something earlier. Until a rank has a guest, its row
shows values of the kernel, so that a rank that never starts is visible as missing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from dfx_agent.agent.agent import Agent
from dfx_agent.attach.processes import HostProcess, ProcessTable
from dfx_agent.attach.programs import is_launcher, rank_of
from dfx_agent.base.errors import BlindError
from dfx_agent.base.log import OncePerPlace
from dfx_agent.base.text import whole_number
from dfx_agent.node.passive import OutsideProcess
from dfx_agent.wire import Identity
from dfx_agent.wire.layout import UNKNOWN

_EVERY_SECONDS = 2.0
# after five polls without a change every eighth poll reads /proc: 9 ms with 1,100 processes
_NUM_POLLS, _QUIET_POLLS = 5, 8
_log = OncePerPlace(__name__)


class StartingRanks:
    """Polls the descendants of ``pid``, the command that this agent has started.

    Every 2 s while a rank starts or the live ranks change, else every 16 s.
    """

    def __init__(self, agent: Agent, run: str, pid: int) -> None:
        self._agent, self._run, self._pid = agent, run, pid
        self._shown: dict[HostProcess, OutsideProcess] = {}
        self._table: ProcessTable | None = None
        self._live_pids: frozenset[int] = frozenset()
        self._num_polls = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dfx-starting", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The job has ended: nothing of it is starting."""
        self._stopped.set()
        self._thread.join(_EVERY_SECONDS)  # the exit code of the job must not wait for /proc
        self._show([])

    def poll(self) -> None:
        """Look once."""
        self._table = self._table or ProcessTable()
        self._table.refresh()
        self._show(list(self._starting(self._table)))

    def _watch(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            try:
                if self._is_due():
                    self.poll()
            except BlindError:
                continue  # the agent reports that it does not read
            except Exception as error:  # noqa: BLE001 (the agent continues without)
                _log.error("looking at ranks that start", error)

    def _is_due(self) -> bool:
        rows = [row for run in self._agent.snapshot().runs for row in run.ranks]
        live_pids = frozenset(row.pid for row in rows if row.state == "live")
        if live_pids != self._live_pids:
            self._live_pids, self._num_polls = live_pids, 0
        self._num_polls += 1
        is_quiet = not self._shown and self._num_polls > _NUM_POLLS
        return not is_quiet or self._num_polls % _QUIET_POLLS == 0

    def _starting(self, table: ProcessTable) -> Iterator[HostProcess]:
        """The outermost Python process of each rank that has no process with a guest."""
        root = table.get(self._pid)
        rows = [row for run in self._agent.snapshot().runs for row in run.ranks]
        guests = [row for row in rows if row.outside is None]
        pids = {row.pid for row in guests}
        seen = {row.rank for row in guests if row.state == "live"}
        for process in table.family(root) if root is not None else ():
            rank = rank_of(process)
            if rank is None or str(rank) in seen or process.pid in pids:
                continue
            if process.is_python and not is_launcher(process) and process.is_alive():
                seen.add(str(rank))
                yield process

    def _show(self, processes: list[HostProcess]) -> None:
        shown = {p: self._shown.get(p) or _outside(p, self._run) for p in processes}
        if shown.keys() != self._shown.keys():
            self._agent.observe_outside(self._run, shown.values())
            self._shown = shown  # only now: a starved agent may refuse


def _outside(process: HostProcess, run: str) -> OutsideProcess:
    rank = rank_of(process)
    world_size = whole_number(process.environment.get("WORLD_SIZE", ""))
    identity = Identity(
        run=run,
        role="trainer",
        host=os.uname().nodename,
        rank=UNKNOWN if rank is None else rank,
        world_size=UNKNOWN if world_size is None else world_size,
    )
    return OutsideProcess(identity, process.pid, process.start_ticks, is_starting=True)
