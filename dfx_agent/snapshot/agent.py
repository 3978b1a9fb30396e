"""Contract 2: everything that one agent knows at one instant, and how it is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dfx_agent.snapshot.devices import DeviceRow
from dfx_agent.snapshot.health import DetectorParameters, SignalHistory
from dfx_agent.snapshot.run import RunRow, RunVerdicts, StepRow
from dfx_agent.snapshot.scalars import ScalarHistory
from dfx_agent.snapshot.time import TimelineRow
from dfx_agent.snapshot.verdict import Blindness, FaultPart, FaultRow

# "lost": it does not answer; "refused": it answers that it does not take what this node tells
HubState = Literal["joining", "joined", "lost", "refused"]

# kinds of problems that are not a segment's: clock, folder and what the agent stores
_OF_NO_SEGMENT = {"clock", "room", "evidence", "totals", "signals", "incidents", "exporter"}


@dataclass(frozen=True, slots=True)
class SegmentProblem:
    """A segment the agent refuses or cannot read, with the reason and the remedy in one line."""

    path: str
    kind: str
    message: str

    @property
    def line(self) -> str:
        """As a terminal shows it."""
        return self.message if self.kind in _OF_NO_SEGMENT else f"refused: {self.message}"


@dataclass(frozen=True, slots=True)
class SpansRow:
    """Spans that a job has told over OTLP. ``first``: the first that was left out, and why."""

    num_taken: int
    num_left_out: int
    first: str


@dataclass(frozen=True, slots=True)
class AgentRow:
    """The agent about itself. ``other_agent_pid`` serves the same folder and does the reaping.

    ``is_job_ended``: it was started with a job, which has ended; it ends soon, too.
    ``read_seconds``: when all was last read to the end. ``num_faults`` counts them by part.
    ``hub``: how telling it stands, None of an agent that has not joined one; ``nodes``: on a hub,
    who tells it something. ``spans``: None of who takes none.
    """

    version: str
    pid: int
    node: str
    begin_seconds: float
    num_polls: int
    poll_elapsed_seconds: float
    num_segments: int
    num_records: int
    num_lost_records: int
    num_reaped_segments: int
    num_exporter_errors: int
    other_agent_pid: int | None
    problems: tuple[SegmentProblem, ...]
    detector: DetectorParameters | None = None
    is_job_ended: bool = False
    read_seconds: float | None = None
    blind: Blindness | None = None
    faults: tuple[FaultRow, ...] = ()
    num_faults: Mapping[FaultPart, int] = field(default_factory=dict)
    num_dropped_runs: int = 0
    devices: tuple[DeviceRow, ...] = ()
    hub: HubRow | None = None
    nodes: tuple[NodeRow, ...] = ()
    spans: SpansRow | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one instant."""

    time_seconds: float
    agent: AgentRow
    runs: tuple[RunRow, ...]
    finished: tuple[RunVerdicts, ...] = ()
    """Runs that ended under an earlier agent of this folder, the newest first."""


class Source(Protocol):
    """What the renderers ask; implemented by the agent."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot; cheap, never blocks."""

    def scalar_history(self, run: str, keys: Sequence[str]) -> Iterable[ScalarHistory]:
        """History of the given native keys, all keys when empty. KeyError on an unknown run."""

    def timeline(
        self, run: str, num_steps: int, ranks: Collection[tuple[str, str]] = ()
    ) -> tuple[TimelineRow, ...]:
        """Each rank's newest steps, the running one included. KeyError on an unknown run.

        Of the ``ranks`` (role, rank) alone where some are given.
        """

    def signal_history(self, run: str, num_steps: int) -> SignalHistory:
        """Training health over the newest steps. KeyError on an unknown run."""

    def reset_signals(self, run: str) -> None:
        """Take the present state of ``run`` as normal. KeyError on an unknown run."""


@dataclass(frozen=True, slots=True)
class HubRow:
    """On a node. ``since_seconds``: Unix time at which ``state`` began; ``message``: its reason.

    ``num_lost``: documents that the hub never took. After a loss everything is told anew.
    """

    url: str
    state: HubState
    since_seconds: float
    message: str
    num_sent: int
    num_lost: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """On the hub: one node that has told something, or has tried to.

    ``heard_seconds``: when last, Unix time of the hub. ``num_missed``: documents that came after
    one that was lost, upon which everything was asked for. ``message``: why the newest refused one
    was refused, "" if none was. ``has_left``: all of its agents have said goodbye.
    ``timeline_problem``: why its agent could not be asked for a timeline, "" where it could.
    """

    node: str
    heard_seconds: float
    num_taken: int
    num_refused: int
    num_missed: int
    message: str
    has_left: bool
    timeline_problem: str = ""


class TimelineSource(Protocol):
    """What a push of steps asks of the agent. KeyError on an unknown run."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    def closed_steps(self, run: str, after_step: int | None) -> tuple[StepRow, ...]:
        """Closed steps of every role that are kept, those after ``after_step`` if it is given."""

    def timeline(self, run: str, num_steps: int) -> tuple[TimelineRow, ...]:
        """Each rank's newest steps as pieces, the running one included."""
