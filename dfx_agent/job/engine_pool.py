"""All engines of a run together: spread of each value, and outliers. Not a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from dfx_agent.base.text import seconds_text
from dfx_agent.snapshot import EngineFacts, EngineNote, EnginePool, ScalarRow, Spread

# a replica is an outlier from this ratio to the median of the others
OUTLIER_FACTOR = 3.0
_MIN_WAITING = 8.0
_MIN_OBSERVATIONS = 20.0
# latency -> (its name for people, difference in seconds from which it matters)
_LATENCIES = {
    "time_to_first_token_seconds": ("time to first token", 0.05),
    "inter_token_latency_seconds": ("time between tokens", 0.005),
    "queue_time_seconds": ("time in queue", 0.05),
    "e2e_latency_seconds": ("time of a request", 0.05),
}
IDLE_RATIO = "dfx_pipeline_idle_ratio"
# differences below this are no contradiction between framework and engines
CONTRADICTION_RATIO = 0.3
_MIN_COMPARED_SECONDS = 10.0


def pool_of(replicas: Sequence[EngineFacts], notes: Iterable[EngineNote] = ()) -> EnginePool | None:
    """None without engines. ``notes``: further notes to include."""
    if not replicas:
        return None
    all_notes = (*_not_up(replicas), *_outliers(replicas), *notes)
    return EnginePool(tuple(replicas), _spreads(replicas), all_notes)


def _figures(engine: EngineFacts) -> Iterator[tuple[str, float]]:
    """Values that are compared between replicas; none for a replica that is not up."""
    if engine.state != "up":
        return
    yield from engine.gauges.items()
    for name, value in (
        ("busy_ratio", engine.busy_ratio),
        ("tokens_per_second", engine.tokens_per_second),
    ):
        if value is not None:
            yield name, value
    for name, latency in engine.latencies.items():
        for quantile, value in (("p50", latency.p50), ("p99", latency.p99)):
            if value is not None:
                yield f"{name}_{quantile}", value


def _spreads(replicas: Iterable[EngineFacts]) -> dict[str, Spread]:
    values: dict[str, list[float]] = {}
    for engine in replicas:
        for name, value in _figures(engine):
            values.setdefault(name, []).append(value)
    return {
        name: Spread(min(found), median(found), max(found), len(found))
        for name, found in sorted(values.items())
    }


def _not_up(replicas: Iterable[EngineFacts]) -> Iterator[EngineNote]:
    for engine in replicas:
        if engine.state != "up":
            words = {"gone": "is gone", "awaited": "has not answered yet"}
            state = words.get(engine.state, f"is {engine.state}")
            sentence = f"{engine.name} ({engine.url}) {state}: {engine.reason}"
            yield EngineNote("not up", engine.replica, engine.dp_rank, sentence)


def _outliers(replicas: Sequence[EngineFacts]) -> Iterator[EngineNote]:
    """Compare each engine with the median of the others that do the same work."""
    up = [engine for engine in replicas if engine.state == "up"]
    for engine in up:
        others = [
            other
            for other in up
            if other is not engine and (other.pd, other.model) == (engine.pd, engine.model)
        ]
        yield from _waiting_note(engine, others)
        for name in _LATENCIES:
            yield from _latency_note(engine, others, name)


def _waiting_note(engine: EngineFacts, others: Iterable[EngineFacts]) -> Iterator[EngineNote]:
    counts = [other.num_waiting for other in others if other.num_waiting is not None]
    value = engine.num_waiting
    if value is None or not counts:
        return
    middle = median(counts)
    if value >= OUTLIER_FACTOR * middle and value - middle >= _MIN_WAITING:
        sentence = (
            f"{engine.name} has {value:.0f} requests waiting, the median of the others {middle:.0f}"
        )
        yield EngineNote(
            "outlier", engine.replica, engine.dp_rank, sentence, "waiting_requests", value, middle
        )


def _latency_note(
    engine: EngineFacts, others: Iterable[EngineFacts], name: str
) -> Iterator[EngineNote]:
    words, floor_seconds = _LATENCIES[name]
    value = _p50(engine, name)
    values = [p50 for other in others if (p50 := _p50(other, name)) is not None]
    if value is None or not values:
        return
    middle = median(values)
    if value >= OUTLIER_FACTOR * middle and value - middle >= floor_seconds:
        sentence = (
            f"{engine.name}: {words} {seconds_text(value)} (p50), the median of the others "
            f"{seconds_text(middle)}"
        )
        yield EngineNote("outlier", engine.replica, engine.dp_rank, sentence, name, value, middle)


def _p50(engine: EngineFacts, name: str) -> float | None:
    latency = engine.latencies.get(name)
    return None if latency is None or latency.num < _MIN_OBSERVATIONS else latency.p50


@dataclass(frozen=True)
class _Mark:
    """Busy and observed seconds of each replica when the ratio of a step was reported."""

    step: int
    seconds: dict[tuple[str, str], tuple[float, float]]


class IdleCheck:
    """Compares the idle ratio that a framework reports for rollout with what its engines did.

    The ratio of a step is compared with the time since the ratio of the previous step.
    """

    def __init__(self) -> None:
        self._mark: _Mark | None = None
        self._note: EngineNote | None = None

    def observe(
        self, replicas: Sequence[EngineFacts], scalars: Iterable[ScalarRow]
    ) -> tuple[EngineNote, ...]:
        """Notes about the latest step. A step whose predecessor was not observed is skipped."""
        idle = _reported_idle(scalars)
        if idle is None or idle.step is None or not replicas:
            self._mark = self._note = None
        elif self._mark is None or self._mark.step != idle.step:
            before = self._mark
            now = {
                (engine.replica, engine.dp_rank): (engine.busy_seconds, engine.observed_seconds)
                for engine in replicas
            }
            self._mark = _Mark(idle.step, now)
            follows = before is not None and idle.step == before.step + 1
            self._note = _contradiction(idle, before.seconds, now) if before and follows else None
        return () if self._note is None else (self._note,)


def _reported_idle(scalars: Iterable[ScalarRow]) -> ScalarRow | None:
    for row in scalars:
        if row.metric == IDLE_RATIO and row.labels.get("side") == "rollout" and row.moments.count:
            return row
    return None


def _contradiction(
    idle: ScalarRow,
    before: dict[tuple[str, str], tuple[float, float]],
    now: dict[tuple[str, str], tuple[float, float]],
) -> EngineNote | None:
    """Only if all replicas contradict: a single one may have had less to do."""
    shares = []
    for key, (busy, observed) in now.items():
        busy_before, observed_before = before.get(key, (0.0, 0.0))
        if observed - observed_before >= _MIN_COMPARED_SECONDS:
            shares.append((busy - busy_before) / (observed - observed_before))
    expected = 1.0 - idle.moments.mean
    if not shares:
        return None
    nearest = min(shares, key=lambda share: abs(share - expected))
    is_between = min(shares) <= expected <= max(shares)
    if is_between or abs(nearest - expected) < CONTRADICTION_RATIO:
        return None
    low, high = min(shares), max(shares)
    seen = f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
    sentence = (
        f"{idle.key} says that the rollout side was idle {idle.moments.mean:.0%} of step "
        f"{idle.step}, but its engines had requests in {seen} of that time"
    )
    return EngineNote("contradiction", "", "", sentence, IDLE_RATIO, nearest, expected)
