"""Contract 2: the agent's knowledge at one instant, as immutable values.

``node`` and ``job`` build the values; exporters, the web page and commands show them. Neither side
imports the other. Names contain the unit. ``*_seconds`` fields are Unix time unless their name or
docstring says "elapsed" or "total". ``None`` means "not reported" and is never shown as zero.
"""

from dfx_agent.snapshot.agent import (
    AgentRow,
    AlertRow,
    Alerts,
    AlertSource,
    DeliveryRow,
    HubRow,
    HubState,
    NodeRow,
    SegmentProblem,
    Snapshot,
    Source,
    SpansRow,
)
from dfx_agent.snapshot.bottleneck import (
    Bottleneck,
    BoundBy,
    CauseKind,
    PartKind,
    PipelineCause,
    StepPart,
)
from dfx_agent.snapshot.devices import (
    DeviceEvent,
    DeviceProcess,
    DeviceRow,
    HostUse,
    StageDevice,
)
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
from dfx_agent.snapshot.memory import (
    DeviceMemory,
    GlibcHeap,
    HeldMemory,
    HostMemory,
    MemoryHistory,
    NonAllocatorMemory,
)
from dfx_agent.snapshot.rank import (
    ON_DEMAND,
    CollectiveTime,
    GroupRow,
    LedgerMismatches,
    LedgerRow,
    LedgerState,
    ModelRow,
    OutsideLook,
    PeakSource,
    RankRow,
    RankSource,
    RankState,
    StageWork,
    WorkRow,
)
from dfx_agent.snapshot.run import DroppedRanks, RunRow, RunVerdicts, StepCell, StepRow
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
from dfx_agent.snapshot.verdict import (
    UNJUDGED,
    Blindness,
    FaultPart,
    FaultRow,
    Incident,
    IncidentSeverity,
    IncidentState,
    RunState,
    Standing,
    Suspicion,
    Verdict,
    VerdictKind,
    VerdictState,
)
