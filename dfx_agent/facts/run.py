"""Everything that one agent knows about one run at one instant: the input of the judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfx_agent.facts.ledger import LedgerNews, Progress
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.memory import MemoryFacts
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.scalars import ReportedScalars, UpdateCounts
from dfx_agent.facts.seat import Launch, ProcessId, Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.snapshot import DroppedRanks, EngineFacts


@dataclass(frozen=True, slots=True)
class Reported:
    """An event that a device reported."""

    device: str
    name: str
    """Such as "XID 79"."""
    meaning: str
    time_seconds: float
    """Unix time."""
    node: str = ""
    ranks: tuple[tuple[str, str], ...] = ()
    """(role, label) of the ranks that use the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run, as the agent of one node sees it.

    Facts that leave the node are sent as a sequence. Full facts contain everything that the node
    stores. Other facts contain only changes:

    - durations, operations, steps, memory samples and numbers since the facts before,
    - changed ``seats``, and processes that ``left``,
    - stacks, flight records and layouts only if they have changed,
    - a rank without ``begin_ns`` stands for the process in earlier facts.
    """

    run: str
    """Name of the run; "" if this node has none."""
    node: str
    now_seconds: float
    """Unix time of the facts."""
    now_ns: int = 0
    """The same on the host's monotonic clock."""
    boot: str = ""
    """Identifies the boot of the host, and so its monotonic clock."""
    agent: str = ""
    """Identifies one start of an agent."""
    number: int = 0
    """Position in the sequence of this agent."""
    is_full: bool = True
    is_last: bool = False
    """Whether the agent is shutting down in an orderly way."""
    failing: str = ""
    """What cannot be read or judged on the node; "" for nothing."""
    framework: str = ""
    quiet_seconds: float = 0.0
    """How long nothing has moved in the run."""
    seats: tuple[Seat, ...] = ()
    """All processes that are seen."""
    left: tuple[ProcessId, ...] = ()
    """Processes that are no longer seen."""
    ranks: Mapping[str, tuple[RankFacts, ...]] = field(default_factory=dict)
    """By role; missing if the ranks are unknown. For a log file only the step that it reports."""
    unjudged: Mapping[str, tuple[RankFacts, ...]] = field(default_factory=dict)
    """By role: logs, detached processes and old attempts. They are shown, no judge reads them."""
    totals: tuple[RankTotals, ...] = ()
    """Changed since the facts before."""
    steps: tuple[RoleSteps, ...] = ()
    """The latest that are stored."""
    memory: tuple[MemoryFacts, ...] = ()
    """The latest that are stored."""
    scalars: tuple[ReportedScalars, ...] = ()
    """New since the facts before."""
    updates: tuple[UpdateCounts, ...] = ()
    """New since the facts before."""
    batches: tuple[LedgerNews, ...] = ()
    """New since the facts before."""
    progress: tuple[Progress, ...] = ()
    reported: tuple[Reported, ...] = ()
    """The latest events of the node's devices."""
    engines: tuple[EngineFacts, ...] | None = None
    """The rollout engines of this node; None if they are as in the facts before."""
    launch: Launch | None = None
    """The run that a launcher on this node is about to start."""
    called: str = ""
    """The hub's name of the run, if another run has the same name; "" for ``run``."""
    attempt: int = 0
    """How often a rank of the run was restarted, at most."""
    begin_seconds: float | None = None
    """Unix time of the first start among processes without a seat; None if there are none."""
    dropped: tuple[DroppedRanks, ...] = ()
    """Processes that ended long ago and are no longer in ``seats``."""
