"""A process of a job that has no guest, observed through ``/proc`` and sampled stacks.

It has a state, CPU time, memory and threads, but no steps, stages or waits. Values from its log
files appear as a rank of the role "log".
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable

from dfx_agent.base import boot_clock
from dfx_agent.base.text import age_text
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.seat import Seat
from dfx_agent.node.host.memory import ProcessBytes, process_bytes
from dfx_agent.node.host.processes import stat_fields
from dfx_agent.node.sentences import OUTSIDE_ONLY, STARTING
from dfx_agent.snapshot import HostMemory, OutsideLook, Verdict
from dfx_agent.wire import Identity
from dfx_agent.wire.layout import UNKNOWN

_LOOK_EVERY_NS = 10**9


class OutsideProcess:
    """One process, identified by pid and start time.

    Call ``look`` on the reader thread; ``add_stack`` may be called on any thread.
    """

    def __init__(
        self, identity: Identity, pid: int, start_ticks: int, *, is_starting: bool = False
    ) -> None:
        self.is_starting = is_starting
        self.identity = identity
        self.pid = pid
        self.start_ticks = start_ticks
        self.label = str(identity.rank) if identity.rank != UNKNOWN else f"p{pid}"
        self.is_living = True
        self._state = ""
        self._cpu_seconds = 0.0
        self._cpu_ratio: float | None = None
        self._num_threads: Counter[str] = Counter()
        self._memory = ProcessBytes()
        self._looked_ns = 0
        self._stage: str | None = None
        self._stage_samples: Counter[str] = Counter()
        self._num_failed_samples = 0
        self.begin_seconds = boot_clock.unix_seconds(start_ticks)

    def look(self, now_ns: int) -> None:
        """Read ``/proc``, once a second at most."""
        if not self.is_living or now_ns < self._looked_ns + _LOOK_EVERY_NS:
            return
        fields = stat_fields(f"/proc/{self.pid}/stat")
        if not fields or fields[0] in {"Z", "X"} or int(fields[19]) != self.start_ticks:
            self._end()
            return
        cpu_seconds = (int(fields[11]) + int(fields[12])) * boot_clock.SECONDS_PER_TICK
        if self._looked_ns:
            elapsed_seconds = (now_ns - self._looked_ns) / 1e9
            self._cpu_ratio = (cpu_seconds - self._cpu_seconds) / elapsed_seconds
        self._state, self._cpu_seconds, self._looked_ns = fields[0], cpu_seconds, now_ns
        self._num_threads = Counter(_thread_states(self.pid))
        self._memory = process_bytes(self.pid)

    def add_stack(self, stage: str | None) -> None:
        """Add a stack sample: the stage of the main thread, "" if unknown, None if unreadable."""
        if stage is None:
            self._num_failed_samples += 1
            return
        self._stage = stage
        self._stage_samples[stage] += 1

    @property
    def seat(self) -> Seat:
        """Where this process belongs in the job. An exit status is never known from outside."""
        identity = self.identity
        return Seat(
            role=identity.role, label=self.label, rank=identity.rank,
            local_rank=identity.local_rank, world_size=identity.world_size, node=identity.host,
            attempt=identity.attempt, state="live" if self.is_living else "exited", pid=self.pid,
            created_ns=round(self.begin_seconds * 1e9),
        )  # fmt: skip

    def totals(self) -> RankTotals:
        """Only its memory is visible from outside."""
        memory, host = self._memory, None
        if memory.anonymous is not None:
            host = HostMemory(
                memory.anonymous, resident_bytes=memory.resident, virtual_bytes=memory.virtual
            )
        return RankTotals(process=self.seat.id, host_memory=host)

    def seen(self) -> OutsideLook:
        """What the latest poll has read."""
        return OutsideLook(
            state=self._state,
            cpu_seconds=self._cpu_seconds if self._looked_ns else None,
            cpu_ratio=self._cpu_ratio,
            num_threads=dict(self._num_threads),
            stage=self._stage,
            stage_samples=self._stage_samples.copy(),
            num_failed_samples=self._num_failed_samples,
            is_starting=self.is_starting,
        )

    def _end(self) -> None:
        self.is_living = False
        self._state, self._stage = "", None
        self._cpu_ratio, self._memory = None, ProcessBytes()
        self._num_threads = Counter()


def placed(processes: Iterable[OutsideProcess]) -> tuple[OutsideProcess, ...]:
    """One process per role and rank: a later process replaces an exited one.

    If two live processes have the same rank, both stay and the label of the later one gets its pid.
    """
    by_place: dict[tuple[str, str], OutsideProcess] = {}
    for process in sorted(processes, key=lambda process: process.start_ticks):
        before = by_place.get((process.identity.role, process.label))
        if before is not None and before.is_living:
            process.label += f".{process.pid}"
        by_place[process.identity.role, process.label] = process
    return tuple(by_place.values())


def verdicts(processes: Iterable[OutsideProcess]) -> tuple[Verdict, ...]:
    """Verdicts that nothing can be concluded: waits for other ranks are invisible from outside."""
    living = [process for process in processes if process.is_living]
    roles = Counter(process.identity.role for process in living if not process.is_starting)
    return *_starting([process for process in living if process.is_starting]), *(
        Verdict(
            "straggler",
            "insufficient evidence",
            role,
            OUTSIDE_ONLY(num=count, are="is" if count == 1 else "are"),
        )
        for role, count in roles.items()
    )


def _starting(processes: list[OutsideProcess]) -> tuple[Verdict, ...]:
    """A verdict about ranks that have written no record yet."""
    if not processes:
        return ()
    first = min(processes, key=lambda process: process.start_ticks)
    labels = ", ".join(process.label for process in processes)
    summary = STARTING(
        ranks=f"Rank {labels} has" if len(processes) == 1 else f"Ranks {labels} have",
        duration=age_text(max(0.0, time.time() - first.begin_seconds)),
    )
    action = STARTING.action_text(pid=first.pid)
    return (Verdict("hang", "insufficient evidence", "", summary, action=action),)


def _thread_states(pid: int) -> list[str]:
    """The kernel's state letter of each thread."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    fields = (stat_fields(f"/proc/{pid}/task/{thread}/stat") for thread in threads)
    return [found[0] for found in fields if found]
