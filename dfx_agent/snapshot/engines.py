"""Contract 2: the rollout engines of a run, as each replica reports itself.

These are facts without conclusions; judges read them unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# awaited: it has not answered yet; slow: no complete answer in time; garbage: an answer without
# engine metrics; gone: it has answered before, and does not any more
EngineState = Literal["awaited", "up", "slow", "garbage", "gone"]
EngineOrigin = Literal["configured", "command line", "socket", "called"]
EngineNoteKind = Literal["not up", "outlier", "contradiction"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by size. Without ``bounds`` only their number and ``sum`` are known."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    """Cumulative: up to each of ``bounds``, then all."""
    sum: float

    @property
    def num(self) -> float:
        return self.counts[-1]

    def quantile(self, share: float) -> float | None:
        """Like Prometheus' histogram_quantile; None without observations or without bounds."""
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
    """Summary of a histogram over the window, in the unit of its name; quantiles need buckets."""

    num: float
    mean: float
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One data parallel rank of one replica, as it reports itself.

    Keys are names of the catalogue without ``dfx_engine_``; the end of a name is its unit. If the
    replica is not "up", all values are those of ``read_seconds``.
    """

    replica: str
    """Its number on this node; does not change while the run is followed."""
    dp_rank: str
    """"" if the replica reports only one."""
    url: str
    state: EngineState
    since_seconds: float
    """When ``state`` began."""
    engine: str = ""
    model: str = ""
    pd: str = ""
    worker: str = ""
    """Which worker reports, if the URL is a router's or Ray's."""
    pid: int | None = None
    origin: EngineOrigin = "configured"
    reason: str = ""
    """Why the state is not "up"."""
    read_seconds: float | None = None
    """When it was last read."""
    window_seconds: float | None = None
    """Length of the window, at most 60 s; None before two readings."""
    busy_ratio: float | None = None
    """Share of the window with running requests; from the scheduler's idle time if reported."""
    busy_seconds: float = 0.0
    observed_seconds: float = 0.0
    """Like ``busy_seconds``, counted since the first reading."""
    sleep_state: str = ""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Latest values."""
    kv_cache_peak_ratio: float | None = None
    """Largest share of the KV cache in use, over all readings."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Counters, continued over restarts of the engine."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Increase of the counters per second, over the window."""
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    """Totals, continued over restarts of the engine."""
    latencies: Mapping[str, Latency] = field(default_factory=dict)
    """Histograms over the window; only those with observations."""
    weight_load_seconds: Mapping[str, float] = field(default_factory=dict)
    """Source -> duration of the latest load of weights."""
    num_readings: int = 0
    num_failed_readings: int = 0
    num_restarts: int = 0
    num_unknown_names: int = 0
    unknown_names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people: "replica 1", "replica 1 dp 3"."""
        return f"replica {self.replica}" + (f" dp {self.dp_rank}" if self.dp_rank else "")

    @property
    def num_running(self) -> float | None:
        return self.gauges.get("running_requests")

    @property
    def num_waiting(self) -> float | None:
        return self.gauges.get("waiting_requests")

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens over the window; the engine's own rate if it has no counter."""
        reported = self.gauges.get("reported_tokens_per_second")
        return self.rates.get("generation_tokens", reported)


@dataclass(frozen=True, slots=True)
class Spread:
    """One value over the replicas that are up and report it."""

    min: float
    median: float
    max: float
    num: int


@dataclass(frozen=True, slots=True)
class EngineNote:
    """An outlier, or a note about all replicas (``replica`` is "" then)."""

    kind: EngineNoteKind
    replica: str
    dp_rank: str
    sentence: str
    quantity: str = ""
    """Name in the catalogue without "dfx_engine_"; for a contradiction, of a native metric."""
    value: float | None = None
    reference: float | None = None
    """What ``value`` is compared with: the replicas' median, or what the framework implies."""


@dataclass(frozen=True, slots=True)
class EnginePool:
    """All engines of a run on this node, by replica; values are never averaged over replicas."""

    replicas: tuple[EngineFacts, ...]
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    notes: tuple[EngineNote, ...] = ()
