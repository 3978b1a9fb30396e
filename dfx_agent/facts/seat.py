"""Who is who: a rank's place in its job, and which process is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dfx_agent.snapshot import RankState

# who tells what a log says: no process of the job, and without a time account
LOG_ROLE = "log"
# roles that make samples
ROLLOUT_SIDE = ("orchestrator", "rollout", "collector")


class ProcessId(NamedTuple):
    """One process of a run; ``created_ns``: when its guest came, Unix time."""

    role: str
    label: str
    created_ns: int

    @property
    def place(self) -> str:
        """What the next process in its place has too; processes without a rank share one."""
        return f"{self.role}/{'p' if self.label.startswith('p') else self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process of a run; -1 where a number is not known.

    ``label``: how it is called, "3" of rank 3, "p4711" of one without a rank. ``node``: the name
    of its host. ``attempt``: how often the rank was started before. ``rendezvous``: where its job
    meets, "host:port", "" unknown.
    """

    role: str
    label: str
    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    node: str = ""
    attempt: int = 0
    state: RankState = "live"
    pid: int = 0
    created_ns: int = 0
    rendezvous: str = ""
    num_lost_records: int = 0
    counts_from_attach: bool = False
    """Whether its step numbers count from an attach: the job has not said any."""
    is_late: bool = False
    """Whether only its spans are known, and late: it is shown and not judged."""

    @property
    def id(self) -> ProcessId:
        """Which process it is, of those that had or have its place."""
        return ProcessId(self.role, self.label, self.created_ns)

    @property
    def is_living(self) -> bool:
        """Whether it may still go on: nobody has seen it end."""
        return self.state in {"live", "unknown"}

    @property
    def is_judged(self) -> bool:
        """Whether it is a process of the job whose state is known as it changes."""
        return self.role != LOG_ROLE and not self.is_late and self.state != "detached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """torchrun of ``run``, which needs ``num_nodes``, and meets them at ``meets_at``.

    ``node_rank``: of this node, -1 where nobody told it. ``begin_ns``: when it began, on the
    host's monotonic clock.
    """

    run: str
    num_nodes: int
    node_rank: int = -1
    meets_at: str = ""
    begin_ns: int = 0
