"""All engines of a run together: the spread of each figure, and who stands out. No verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from dfx_agent.base.text import seconds_text
from dfx_agent.snapshot import EngineFacts, EngineNote, EnginePool, ScalarRow, Spread

# how far off the others a replica is told
OUTLIER_FACTOR = 3.0
_MIN_WAITING = 8.0
_MIN_OBSERVATIONS = 20.0
# latency -> (what people call it, seconds by which it has to differ to matter)
_LATENCIES = {
    "time_to_first_token_seconds": ("time to first token", 0.05),
    "inter_token_latency_seconds": ("time between tokens", 0.005),
    "queue_time_seconds": ("time in queue", 0.05),
    "e2e_latency_seconds": ("time of a request", 0.05),
}
IDLE_RATIO = "dfx_pipeline_idle_ratio"
# apart by so much, told and seen are not the same thing
CONTRADICTION_RATIO = 0.3
_MIN_COMPARED_SECONDS = 10.0


def pool_of(replicas: Sequence[EngineFacts], notes: Iterable[EngineNote] = ()) -> EnginePool | None:
    """None without engines. ``notes`` are further ones."""
    if not replicas:
        return None
    all_notes = (*_not_up(replicas), *_outliers(replicas), *notes)
    return EnginePool(tuple(replicas), _spreads(replicas), all_notes)


def _figures(engine: EngineFacts) -> Iterator[tuple[str, float]]:
    """What is compared between replicas; of one that is not up nothing."""
    if engine.state != "up":
        return
    yield from engine.gauges.items()
    for name, value in (
        ("busy_ratio", engine.busy_ratio),
        ("tokens_per_second", engine.tokens_per_second),
    ):
        if value is not None:
            yield name, value
    for name, told in engine.latencies.items():
        for quantile, value in (("p50", told.p50), ("p99", told.p99)):
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
    """Each against the median of the others that do the same work."""
    up = [engine for engine in replicas if engine.state == "up"]
    for engine in up:
        others = [o for o in up if o is not engine and (o.pd, o.model) == (engine.pd, engine.model)]
        yield from _waiting_note(engine, others)
        for name in _LATENCIES:
            yield from _latency_note(engine, others, name)


def _waiting_note(engine: EngineFacts, others: Iterable[EngineFacts]) -> Iterator[EngineNote]:
    told = [o.num_waiting for o in others if o.num_waiting is not None]
    value = engine.num_waiting
    if value is None or not told:
        return
    middle = median(told)
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
    told = [p50 for other in others if (p50 := _p50(other, name)) is not None]
    if value is None or not told:
        return
    middle = median(told)
    if value >= OUTLIER_FACTOR * middle and value - middle >= floor_seconds:
        sentence = (
            f"{engine.name}: {words} {seconds_text(value)} (p50), the median of the others "
            f"{seconds_text(middle)}"
        )
        yield EngineNote("outlier", engine.replica, engine.dp_rank, sentence, name, value, middle)


def _p50(engine: EngineFacts, name: str) -> float | None:
    told = engine.latencies.get(name)
    return None if told is None or told.num < _MIN_OBSERVATIONS else told.p50


@dataclass(frozen=True)
class _Mark:
    """When a step's ratio came, and what each replica had been busy and observed until then."""

    step: int
    seconds: dict[tuple[str, str], tuple[float, float]]


class IdleCheck:
    """Of one run: what its framework says of the rollout side, against what the engines did.

    A step's ratio is compared with the time between it and the ratio of the step before.
    """

    def __init__(self) -> None:
        self._mark: _Mark | None = None
        self._note: EngineNote | None = None

    def observe(
        self, replicas: Sequence[EngineFacts], scalars: Iterable[ScalarRow]
    ) -> tuple[EngineNote, ...]:
        """As often as anybody looks; a step that nobody saw come is not judged."""
        told = _told_idle(scalars)
        if told is None or told.step is None or not replicas:
            self._mark = self._note = None
        elif self._mark is None or self._mark.step != told.step:
            before = self._mark
            now = {(e.replica, e.dp_rank): (e.busy_seconds, e.observed_seconds) for e in replicas}
            self._mark = _Mark(told.step, now)
            follows = before is not None and told.step == before.step + 1
            self._note = _contradiction(told, before.seconds, now) if before and follows else None
        return () if self._note is None else (self._note,)


def _told_idle(scalars: Iterable[ScalarRow]) -> ScalarRow | None:
    for row in scalars:
        if row.metric == IDLE_RATIO and row.labels.get("side") == "rollout" and row.moments.count:
            return row
    return None


def _contradiction(
    told: ScalarRow,
    before: dict[tuple[str, str], tuple[float, float]],
    now: dict[tuple[str, str], tuple[float, float]],
) -> EngineNote | None:
    """Only where all replicas contradict: one alone may have had less to do."""
    shares = []
    for key, (busy, observed) in now.items():
        busy_before, observed_before = before.get(key, (0.0, 0.0))
        if observed - observed_before >= _MIN_COMPARED_SECONDS:
            shares.append((busy - busy_before) / (observed - observed_before))
    expected = 1.0 - told.moments.mean
    if not shares:
        return None
    nearest = min(shares, key=lambda share: abs(share - expected))
    is_between = min(shares) <= expected <= max(shares)
    if is_between or abs(nearest - expected) < CONTRADICTION_RATIO:
        return None
    low, high = min(shares), max(shares)
    seen = f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
    sentence = (
        f"{told.key} says that the rollout side was idle {told.moments.mean:.0%} of step "
        f"{told.step}, but its engines had requests in {seen} of that time"
    )
    return EngineNote("contradiction", "", "", sentence, IDLE_RATIO, nearest, expected)
