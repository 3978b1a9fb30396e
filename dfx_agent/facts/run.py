"""All that one agent knows of one run at one instant: what judges are given, in one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfx_agent.facts.devices import Reported
from dfx_agent.facts.ledger import LedgerNews, Progress
from dfx_agent.facts.memory import MemoryFacts
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.scalars import ToldScalars, UpdateCounts
from dfx_agent.facts.seat import Launch, ProcessId, Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.snapshot import DroppedRanks


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Of the processes that the agent of ``node`` sees, as of Unix time ``now_seconds``.

    ``seats``: who is seen. ``ranks``: by role, where each is now; missing for a role
    of which that is not known. Of a log only the step that it reports. ``quiet_seconds``: how long
    nothing has moved in the whole run. ``steps`` and ``memory``: the newest that are kept.
    ``scalars``, ``updates``, ``batches``: what came since the facts before; ``progress``: how far
    those are that show batches. ``reported``: by devices of the node, the newest.

    Facts that leave the node come one after the other, by ``number``, from one start of an
    ``agent``. With ``is_full`` they are all that is kept. Else what is told of durations,
    operations, steps, samples of memory and numbers is what came since the facts before; stacks,
    flight records and layouts that were told stay as they are; ``seats`` are those that changed,
    ``left`` are gone; and a rank without ``begin_ns`` is the process that was told of. ``now_ns``
    is on the monotonic clock of the host, which ``boot`` tells from others. ``is_last``: the agent
    leaves in order. A ``run`` of "" says that this node has none; ``launch`` is the one that its
    launcher is about to start. ``failing``: what cannot be read or judged there, "" for nothing.
    ``called``: what a hub called the run beside another one of its name, "" for ``run``.
    """

    run: str
    node: str
    now_seconds: float
    now_ns: int = 0
    boot: str = ""
    agent: str = ""
    number: int = 0
    is_full: bool = True
    is_last: bool = False
    failing: str = ""
    framework: str = ""
    quiet_seconds: float = 0.0
    seats: tuple[Seat, ...] = ()
    left: tuple[ProcessId, ...] = ()
    ranks: Mapping[str, tuple[RankFacts, ...]] = field(default_factory=dict)
    steps: tuple[RoleSteps, ...] = ()
    memory: tuple[MemoryFacts, ...] = ()
    scalars: tuple[ToldScalars, ...] = ()
    updates: tuple[UpdateCounts, ...] = ()
    batches: tuple[LedgerNews, ...] = ()
    progress: tuple[Progress, ...] = ()
    reported: tuple[Reported, ...] = ()
    launch: Launch | None = None
    called: str = ""
    attempt: int = 0
    """How often a rank of it was started before, at most."""
    begin_seconds: float | None = None
    """When the first of those began that are in no seat, Unix time; None for none."""
    dropped: tuple[DroppedRanks, ...] = ()
    """Processes that ended long ago and are not in ``seats`` any more."""
