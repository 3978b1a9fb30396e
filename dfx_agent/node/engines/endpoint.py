"""One metrics endpoint of engines: its latest values and its state."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from dfx_agent.base.text import whole_number
from dfx_agent.node.engines.exposition import MAX_UNKNOWN_NAMES, EngineReading, PartKey
from dfx_agent.node.engines.history import History
from dfx_agent.snapshot import EngineFacts, EngineOrigin, EngineState

# a router or Ray's agent may report many engines
MAX_PARTS = 256


@dataclass(frozen=True)
class FoundEngine:
    """Where an engine of a run is, and how it was found. ``pd``: prefill or decode, if known."""

    url: str
    run: str
    origin: EngineOrigin
    pid: int | None = None
    pd: str = ""

    @property
    def order(self) -> tuple[str, int, str]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80, self.url


class EngineEndpoint:
    """State of one endpoint. ``now``: Unix time, ``at``: monotonic clock; both in seconds."""

    def __init__(self, found: FoundEngine, now: float) -> None:
        self.found = found
        self.state: EngineState = "awaited"
        self.since_seconds = now
        self.reason = "it has not answered yet"
        self._read_seconds: float | None = None
        self._engine = ""
        self._num_readings = self._num_failed = 0
        self._unknown: frozenset[str] = frozenset()
        self._start_seconds: float | None = None
        self._histories: dict[PartKey, History] = {}

    @property
    def workers(self) -> tuple[str, ...]:
        """Workers that it reports, sorted; one without a name before the first reading."""
        return tuple(sorted({key.worker for key in self._histories})) or ("",)

    def update_origin(self, found: FoundEngine) -> None:
        """Discovery has found it again, maybe in another process."""
        origin = self.found.origin if self.found.origin == "configured" else found.origin
        self.found = replace(found, origin=origin)

    def add(self, reading: EngineReading, at: float) -> None:
        """Add the values of one answer."""
        self._set_state("up", "", time.time())
        started, self._start_seconds = self._start_seconds, reading.start_seconds
        is_restart = None not in {started, reading.start_seconds} and (
            started != reading.start_seconds
        )
        self._read_seconds = time.time()
        self._num_readings += 1
        self._engine, self._unknown = reading.engine, reading.unknown_names
        for key, part in reading.parts.items():
            history = self._histories.get(key)
            if history is None:
                if len(self._histories) >= MAX_PARTS:
                    continue
                history = self._histories[key] = History()
            history.add(part, at, is_restart=is_restart)

    def fail(self, state: EngineState, reason: str) -> None:
        """It did not answer; an endpoint that never answered stays "awaited" instead of "gone"."""
        self._num_failed += 1
        if state == "gone" and not self._num_readings:
            state = "awaited"
        self._set_state(state, reason, time.time())

    def _set_state(self, state: EngineState, reason: str, now: float) -> None:
        if state != self.state:
            self.state, self.since_seconds = state, now
        self.reason = reason

    def facts(self, numbers: Mapping[str, int]) -> Iterator[EngineFacts]:
        """``numbers``: worker -> number of its replica."""
        ordered = sorted(self._histories.items(), key=lambda item: _order(item[0]))
        for key, history in ordered or [(PartKey(), History())]:
            yield self._part_facts(key, history, str(numbers[key.worker]))

    def _part_facts(self, key: PartKey, history: History, replica: str) -> EngineFacts:
        latest = history.latest
        return EngineFacts(
            replica=replica,
            dp_rank=key.dp_rank if self._num_ranks(key.worker) > 1 else "",
            url=self.found.url,
            state=self.state,
            since_seconds=self.since_seconds,
            engine=self._engine,
            model=latest.model,
            pd=latest.pd if latest.pd in {"prefill", "decode"} else self.found.pd,
            worker=key.worker,
            pid=self.found.pid,
            origin=self.found.origin,
            reason=self.reason,
            read_seconds=self._read_seconds,
            window_seconds=history.window_seconds,
            busy_ratio=history.busy_ratio(),
            busy_seconds=history.busy_seconds,
            observed_seconds=history.observed_seconds,
            sleep_state=latest.sleep_state,
            gauges=latest.gauges,
            kv_cache_peak_ratio=history.kv_cache_peak_ratio,
            totals=dict(history.totals.counters),
            rates=history.rates(),
            histograms=dict(history.totals.histograms),
            latencies=history.latencies(),
            weight_load_seconds=latest.weight_load_seconds,
            num_readings=self._num_readings,
            num_failed_readings=self._num_failed,
            num_restarts=history.num_restarts,
            num_unknown_names=len(self._unknown),
            unknown_names=tuple(sorted(self._unknown)[:MAX_UNKNOWN_NAMES]),
        )

    def _num_ranks(self, worker: str) -> int:
        return sum(key.worker == worker for key in self._histories)


def _order(key: PartKey) -> tuple[str, int, str]:
    number = whole_number(key.dp_rank)
    return key.worker, -1 if number is None else number, key.dp_rank
