"""Contract 2: the rollout engines of a run: what each replica says of itself.

These are facts, frozen and concluded from by nobody yet: a judge takes them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# awaited: nobody has answered there yet; slow: no whole answer in time; garbage: an answer that
# says nothing; gone: it answered once, and nobody listens there now
EngineState = Literal["awaited", "up", "slow", "garbage", "gone"]
EngineOrigin = Literal["configured", "command line", "socket", "called"]
EngineNoteKind = Literal["not up", "outlier", "contradiction"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by size. ``counts`` are cumulative: up to each of ``bounds``, then all.

    Without ``bounds`` only how many there were and their ``sum`` is known.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def num(self) -> float:
        return self.counts[-1]

    def quantile(self, share: float) -> float | None:
        """As Prometheus' histogram_quantile; None without observations or without bounds."""
        wanted, below, low = share * self.num, 0.0, 0.0
        if self.num <= 0 or not self.bounds:
            return None
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count >= wanted and count > below:
                begin = bound if bound <= 0 else low
                part = max(0.0, wanted - below) / (count - below)
                return min(bound, begin + (bound - begin) * part)  # rounding may exceed it
            below, low = count, bound
        return self.bounds[-1]


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram over the window. The unit is that of its name; quantiles need buckets."""

    num: float
    mean: float
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One data parallel rank of one replica, as it says itself. All names are the catalogue's.

    The catalogue calls each ``dfx_engine_<name>``, and its unit is the end of the name.
    ``replica``: its number on this node, which stays as long as the run is followed. ``dp_rank`` is
    "" where the replica tells of one alone. ``url`` is what is read, ``worker`` who of those that
    it tells of (behind a router or Ray), else "". ``since_seconds``: when ``state`` began, and
    ``reason`` why it is not "up". All figures are of ``read_seconds``, when it was last up: a
    replica that is not up has old ones. ``window_seconds`` is how far back the window goes (60 s at
    most), and None until two readings.

    ``gauges``: newest values. ``totals``: counters, which go on over a restart of the engine.
    ``rates``: their increase a second over the window. ``histograms``: totals too. ``latencies``:
    their window, only where something was observed in it. ``busy_ratio``: share of the window in
    which requests ran; by the scheduler's own idle time where it tells that, else each reading
    stands for the time around it. ``busy_seconds`` of ``observed_seconds`` are the same since it
    was first read.
    ``weight_load_seconds`` is source -> its newest load of weights.
    """

    replica: str
    dp_rank: str
    url: str
    state: EngineState
    since_seconds: float
    engine: str = ""
    model: str = ""
    pd: str = ""
    worker: str = ""
    pid: int | None = None
    origin: EngineOrigin = "configured"
    reason: str = ""
    read_seconds: float | None = None
    window_seconds: float | None = None
    busy_ratio: float | None = None
    busy_seconds: float = 0.0
    observed_seconds: float = 0.0
    sleep_state: str = ""
    gauges: Mapping[str, float] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    latencies: Mapping[str, Latency] = field(default_factory=dict)
    weight_load_seconds: Mapping[str, float] = field(default_factory=dict)
    num_readings: int = 0
    num_failed_readings: int = 0
    num_restarts: int = 0
    num_unknown_names: int = 0
    unknown_names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As people read it: "replica 1", "replica 1 dp 3"."""
        return f"replica {self.replica}" + (f" dp {self.dp_rank}" if self.dp_rank else "")

    @property
    def num_running(self) -> float | None:
        return self.gauges.get("running_requests")

    @property
    def num_waiting(self) -> float | None:
        return self.gauges.get("waiting_requests")

    @property
    def tokens_per_second(self) -> float | None:
        """Generated, over the window; what the engine says of itself where it counts none."""
        told = self.gauges.get("reported_tokens_per_second")
        return self.rates.get("generation_tokens", told)


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the replicas that are up and tell it."""

    min: float
    median: float
    max: float
    num: int


@dataclass(frozen=True, slots=True)
class EngineNote:
    """What one replica stands out by, or what is told of all (``replica`` is "" then).

    ``quantity`` is a name of the catalogue without "dfx_engine_", or of a native metric for a
    contradiction; ``reference`` what ``value`` is compared with: the median of the replicas, or
    what the engines would have to show if the framework were right.
    """

    kind: EngineNoteKind
    replica: str
    dp_rank: str
    sentence: str
    quantity: str = ""
    value: float | None = None
    reference: float | None = None


@dataclass(frozen=True, slots=True)
class EnginePool:
    """All engines of a run on this node, by replica; figures are never averaged over them."""

    replicas: tuple[EngineFacts, ...]
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    notes: tuple[EngineNote, ...] = ()
