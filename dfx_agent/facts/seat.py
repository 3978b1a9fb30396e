"""Which processes a run has, and which rank each of them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dfx_agent.snapshot import RankState

# role of a log file that is read instead of a process
LOG_ROLE = "log"
# roles that generate samples
ROLLOUT_SIDE = ("orchestrator", "rollout", "collector")


class ProcessId(NamedTuple):
    """Identifies one process of a run."""

    role: str
    label: str
    created_ns: int
    """Unix time at which its guest started."""

    @property
    def place(self) -> str:
        """A key that a restarted process shares; processes without a rank share one key."""
        return f"{self.role}/{'p' if self.label.startswith('p') else self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process of a run; -1 stands for an unknown number."""

    role: str
    label: str
    """"3" for rank 3, "p4711" for a process without a rank."""
    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    node: str = ""
    """Name of its host."""
    attempt: int = 0
    """How often the rank was restarted."""
    state: RankState = "live"
    pid: int = 0
    created_ns: int = 0
    rendezvous: str = ""
    """Address of the job's rendezvous, "host:port"; "" if unknown."""
    num_lost_records: int = 0
    counts_from_attach: bool = False
    """Whether its step numbers count from an attach, because the job has set none."""
    is_late: bool = False
    """Whether only spans, which arrive late, report it: it is shown and not judged."""

    @property
    def id(self) -> ProcessId:
        """Identifies the process among all that had or have this rank."""
        return ProcessId(self.role, self.label, self.created_ns)

    @property
    def is_living(self) -> bool:
        """Whether it may still run: no agent has seen it end."""
        return self.state in {"live", "unknown"}

    @property
    def is_judged(self) -> bool:
        """Whether it is a process of the job whose state is reported as it changes."""
        return self.role != LOG_ROLE and not self.is_late and self.state != "detached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A torchrun that waits for its nodes."""

    run: str
    num_nodes: int
    """Nodes that it needs."""
    node_rank: int = -1
    """Number of this node; -1 if unknown."""
    meets_at: str = ""
    """Address of the rendezvous."""
    begin_ns: int = 0
    """When it started, on the host's monotonic clock."""
