"""Contract 2: the complete state of one agent, and the interfaces through which it is read."""

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


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One alert that fires now; its ``labels`` (alertname, run, …) identify it."""

    run: str
    alert: str
    severity: str
    labels: Mapping[str, str]
    summary: str
    since_seconds: float
    since_step: int | None
    is_inhibited: bool
    """Whether it is not sent because another alert covers it."""
    lines: tuple[str, ...]
    meaning: str
    diagnosis: str
    mitigation: str
    verdict: str = ""
    incident: str = ""
    """Id of its incident; begin and ``sentence`` are the incident's."""
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """One receiver of alerts."""

    kind: Literal["alertmanager", "webhook"]
    target: str
    """Its host, without secrets."""
    is_reached: bool | None
    """None before the first attempt."""
    num_sent: int
    num_failed: int
    num_dropped: int
    num_waiting: int
    last_error: str
    """One line; "" after a success."""


@dataclass(frozen=True, slots=True)
class Alerts:
    """Alerts that fire at one instant, worst first, and the state of their delivery."""

    time_seconds: float
    alerts: tuple[AlertRow, ...]
    deliveries: tuple[DeliveryRow, ...]
    num_evaluations: int
    num_errors: int


class AlertSource(Protocol):
    """What renderers of alerts read; implemented by ``alerting``."""

    def alerts(self) -> Alerts:
        """Alerts of the latest evaluation; cheap, never blocks."""


# "lost": the hub does not answer; "refused": the hub rejects what this node sends
HubState = Literal["joining", "joined", "lost", "refused"]

# kinds of problems that are not about a segment: clock, folder, and files that the agent stores
_NOT_ABOUT_SEGMENTS = {"clock", "room", "evidence", "totals", "signals", "incidents", "exporter"}


@dataclass(frozen=True, slots=True)
class SegmentProblem:
    """A segment the agent refuses or cannot read, with the reason and the remedy in one line."""

    path: str
    kind: str
    message: str

    @property
    def line(self) -> str:
        """The problem as one line for a terminal."""
        is_about_segment = self.kind not in _NOT_ABOUT_SEGMENTS
        return f"refused: {self.message}" if is_about_segment else self.message


@dataclass(frozen=True, slots=True)
class SpansRow:
    """Spans that a job sent over OTLP."""

    num_taken: int
    num_left_out: int
    first: str
    """The first span that was left out, and why."""


@dataclass(frozen=True, slots=True)
class AgentRow:
    """The agent about itself."""

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
    """Another agent that serves the same folder and removes segments of exited processes."""
    problems: tuple[SegmentProblem, ...]
    detector: DetectorParameters | None = None
    is_job_ended: bool = False
    """Whether the job that the agent was started with has ended; the agent will end soon too."""
    read_seconds: float | None = None
    """When all processes were last read without a failure."""
    blind: Blindness | None = None
    faults: tuple[FaultRow, ...] = ()
    num_faults: Mapping[FaultPart, int] = field(default_factory=dict)
    num_dropped_runs: int = 0
    devices: tuple[DeviceRow, ...] = ()
    hub: HubRow | None = None
    """Connection to a hub; None if the agent has not joined one."""
    nodes: tuple[NodeRow, ...] = ()
    """On a hub: the nodes that send to it."""
    spans: SpansRow | None = None
    """None if the agent accepts no spans."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The complete state at one instant."""

    time_seconds: float
    agent: AgentRow
    runs: tuple[RunRow, ...]
    finished: tuple[RunVerdicts, ...] = ()
    """Runs that ended under an earlier agent of this folder, latest first."""


class Source(Protocol):
    """What renderers read; implemented by the agent."""

    def snapshot(self) -> Snapshot:
        """The latest snapshot; cheap, never blocks."""

    def scalar_history(self, run: str, keys: Sequence[str]) -> Iterable[ScalarHistory]:
        """History of the given native keys, all keys when empty. KeyError on an unknown run."""

    def timeline(
        self, run: str, num_steps: int, ranks: Collection[tuple[str, str]] = ()
    ) -> tuple[TimelineRow, ...]:
        """Each rank's latest steps, including the current one. KeyError on an unknown run.

        ``ranks``: only these (role, rank), if any are given.
        """

    def signal_history(self, run: str, num_steps: int) -> SignalHistory:
        """Training health over the latest steps. KeyError on an unknown run."""

    def reset_signals(self, run: str) -> None:
        """Treat the current state of ``run`` as normal. KeyError on an unknown run."""


@dataclass(frozen=True, slots=True)
class HubRow:
    """Connection of a node to its hub. After a loss, the complete state is sent again."""

    url: str
    state: HubState
    since_seconds: float
    """When ``state`` began."""
    message: str
    """Reason for ``state``."""
    num_sent: int
    num_lost: int
    """Documents that never reached the hub."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """On a hub: one node that has connected or tried to connect."""

    node: str
    heard_seconds: float
    """Time of the last report, on the hub's clock."""
    num_taken: int
    num_refused: int
    num_missed: int
    """Documents that followed a lost one; after each, the hub requested the complete state."""
    message: str
    """Why the last refused document was refused; "" if none was."""
    has_left: bool
    """Whether all of its agents have disconnected."""
    timeline_problem: str = ""
    """Why the node's agent cannot be asked for a timeline; "" if it can."""


class TimelineSource(Protocol):
    """What an exporter of steps reads from the agent. KeyError on an unknown run."""

    def snapshot(self) -> Snapshot:
        """The latest snapshot."""

    def closed_steps(self, run: str, after_step: int | None) -> tuple[StepRow, ...]:
        """Stored steps of every role that are closed, after ``after_step`` if it is given."""

    def timeline(self, run: str, num_steps: int) -> tuple[TimelineRow, ...]:
        """Each rank's latest steps as pieces, including the current step."""
