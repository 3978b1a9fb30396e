"""Contract 2: what the agent knows at one instant, as frozen values.

Readers and devices build these; exporters, the web page and commands render them. Neither side
imports the other. Units stand in the names; ``*_seconds`` stamps without "elapsed" or "total" in
the docstring are Unix time. ``None`` means "nobody told us" and must never be rendered as zero.
"""

from dfx_agent.snapshot.agent import AgentRow, SegmentProblem, Snapshot, Source, SpansRow
from dfx_agent.snapshot.alerts import AlertRow, Alerts, AlertSource, DeliveryRow
from dfx_agent.snapshot.bottleneck import (
    Bottleneck,
    BoundBy,
    CauseKind,
    PartKind,
    PipelineCause,
    StepPart,
)
from dfx_agent.snapshot.collectives import CollectiveTime, GroupRow
from dfx_agent.snapshot.devices import (
    DeviceEvent,
    DeviceProcess,
    DeviceRow,
    HostUse,
    StageDevice,
)
from dfx_agent.snapshot.dropped import DroppedRanks
from dfx_agent.snapshot.engines import (
    EngineFacts,
    EngineNote,
    EngineNoteKind,
    EngineOrigin,
    EnginePool,
    EngineState,
    Histogram,
    Latency,
    Spread,
)
from dfx_agent.snapshot.event_loop import EventLoopRow, LagStats, LoopHolder, LoopPhase, LoopStep
from dfx_agent.snapshot.evidence import (
    EvidenceOutcome,
    IncidentEvidence,
    RankEvidence,
    RecordedCollective,
    RecordedThread,
    SameStack,
)
from dfx_agent.snapshot.faults import Blindness, FaultPart, FaultRow
from dfx_agent.snapshot.health import (
    CollapseKind,
    CollapseRow,
    DetectorParameters,
    OnsetRange,
    SignalHistory,
    SignalParameters,
    SignalRow,
    SignalSeries,
    SignalState,
    SymptomRow,
    SymptomSeries,
)
from dfx_agent.snapshot.hub import HubRow, HubState, NodeRow
from dfx_agent.snapshot.incidents import (
    UNJUDGED,
    Incident,
    IncidentSeverity,
    IncidentState,
    RunState,
    Standing,
)
from dfx_agent.snapshot.ledger import LedgerMismatches, LedgerRow, LedgerState
from dfx_agent.snapshot.memory import (
    BesideAllocator,
    DeviceMemory,
    GlibcHeap,
    HeldMemory,
    HostMemory,
)
from dfx_agent.snapshot.rank import OutsideLook, RankRow, RankSource, RankState
from dfx_agent.snapshot.run import RunRow, RunVerdicts, StepCell, StepRow
from dfx_agent.snapshot.scalars import Moments, ScalarHistory, ScalarRow
from dfx_agent.snapshot.time import (
    OpenSpan,
    Piece,
    PieceKind,
    SpanKind,
    StageStamp,
    TimelineRow,
    TimeSplit,
)
from dfx_agent.snapshot.verdict import Verdict, VerdictKind, VerdictState
from dfx_agent.snapshot.work import ModelRow, PeakSource, StageWork, WorkRow

__all__ = [
    "UNJUDGED",
    "AgentRow",
    "AlertRow",
    "AlertSource",
    "Alerts",
    "BesideAllocator",
    "Blindness",
    "Bottleneck",
    "BoundBy",
    "CauseKind",
    "CollapseKind",
    "CollapseRow",
    "CollectiveTime",
    "DeliveryRow",
    "DetectorParameters",
    "DeviceEvent",
    "DeviceMemory",
    "DeviceProcess",
    "DeviceRow",
    "DroppedRanks",
    "EngineFacts",
    "EngineNote",
    "EngineNoteKind",
    "EngineOrigin",
    "EnginePool",
    "EngineState",
    "EventLoopRow",
    "EvidenceOutcome",
    "FaultPart",
    "FaultRow",
    "GlibcHeap",
    "GroupRow",
    "HeldMemory",
    "Histogram",
    "HostMemory",
    "HostUse",
    "HubRow",
    "HubState",
    "Incident",
    "IncidentEvidence",
    "IncidentSeverity",
    "IncidentState",
    "LagStats",
    "Latency",
    "LedgerMismatches",
    "LedgerRow",
    "LedgerState",
    "LoopHolder",
    "LoopPhase",
    "LoopStep",
    "ModelRow",
    "Moments",
    "NodeRow",
    "OnsetRange",
    "OpenSpan",
    "OutsideLook",
    "PartKind",
    "PeakSource",
    "Piece",
    "PieceKind",
    "PipelineCause",
    "RankEvidence",
    "RankRow",
    "RankSource",
    "RankState",
    "RecordedCollective",
    "RecordedThread",
    "RunRow",
    "RunState",
    "RunVerdicts",
    "SameStack",
    "ScalarHistory",
    "ScalarRow",
    "SegmentProblem",
    "SignalHistory",
    "SignalParameters",
    "SignalRow",
    "SignalSeries",
    "SignalState",
    "Snapshot",
    "Source",
    "SpanKind",
    "SpansRow",
    "Spread",
    "StageDevice",
    "StageStamp",
    "StageWork",
    "Standing",
    "StepCell",
    "StepPart",
    "StepRow",
    "SymptomRow",
    "SymptomSeries",
    "TimeSplit",
    "TimelineRow",
    "Verdict",
    "VerdictKind",
    "VerdictState",
    "WorkRow",
]
