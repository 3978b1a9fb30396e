"""Finds rollout engines that are stuck, gone, or slower than engines with the same work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from dfx_agent.base.text import seconds_text
from dfx_agent.judge.bottleneck import sentences
from dfx_agent.judge.bottleneck.pipeline_facts import ProcessTime
from dfx_agent.judge.bottleneck.step_shares import WEIGHT_SYNC
from dfx_agent.judge.bottleneck.window import EngineKey, PipelineWindow
from dfx_agent.snapshot import EngineFacts, PipelineCause

# an engine that has moved no request for so long is stuck, if other engines move
STILL_SECONDS = 10.0
_LEAST_AHEAD_SECONDS = 5.0
_ALONE_STILL_SECONDS = 120.0

_BETWEEN_TOKENS = "inter_token_latency_seconds"
_LEAST_TOKENS = 20.0
_SAMPLED_SECONDS = 30.0
_SLOW_FOR_SECONDS, _DROP_SECONDS = 10.0, 8.0
_SLOWER_RATIO, _STILL_SLOWER_RATIO = 1.5, 1.3
_EACH_RATIO, _MOSTLY, _LEAST_COMPARED = 1.3, 0.75, 2
_LEAST_SLOWER_SECONDS = 0.001
_SLOW_TO_ANSWER_SECONDS = 20.0
_LOST = {"gone": "gone", "slow": "too slow to answer", "garbage": "not understood"}
_PAUSE = f"{WEIGHT_SYNC}_pause"
_MOVES = ("generation_tokens", "prompt_tokens", "finished_requests")


@dataclass
class _EngineProgress:
    moved: tuple[float, ...]
    at_seconds: float
    is_first: bool = True


class StillEngines:
    """Finds engines that hold requests but move none of them, from their counters."""

    def __init__(self) -> None:
        self._progress: dict[EngineKey, _EngineProgress] = {}

    def causes(
        self, engines: Sequence[EngineFacts], processes: Iterable[ProcessTime], now_seconds: float
    ) -> list[PipelineCause]:
        """Engines that are stuck now. Engines whose process waits for new weights are skipped."""
        processes = list(processes)
        waiting = {
            process.pid
            for process in processes
            if any(span.name == "policy" for span in process.inflight)
        }
        for engine in engines:
            self._observe(engine)
        at_work = [
            engine for engine in engines if engine.pid not in waiting and _holds_requests(engine)
        ]
        is_awaited = len(at_work) == 1 < len(engines) and _is_pause_awaited(processes)
        return [
            _stuck_cause(engine, now_seconds - self._progress[_key(engine)].at_seconds)
            for engine in at_work
            if self._is_stuck(engine, engines, now_seconds, is_awaited=is_awaited)
        ]

    def all_still_seconds(self, engines: Sequence[EngineFacts], now_seconds: float) -> float:
        """How long all engines have held requests and moved none; 0 if one moves."""
        progress = [self._progress.get(_key(engine)) for engine in engines if engine.num_running]
        still = [now_seconds - latest.at_seconds for latest in progress if latest is not None]
        return min(still, default=0.0) if still and len(progress) == len(engines) else 0.0

    def _observe(self, engine: EngineFacts) -> None:
        moved = tuple(engine.totals.get(name, 0.0) for name in _MOVES)
        before = self._progress.get(_key(engine))
        is_idle = not engine.num_running or engine.sleep_state not in {"", "awake"}
        if engine.read_seconds is None:
            return
        if before is None or before.moved != moved or is_idle:
            progress = _EngineProgress(moved, engine.read_seconds, before is None)
            self._progress[_key(engine)] = progress

    def _is_stuck(
        self,
        engine: EngineFacts,
        engines: Iterable[EngineFacts],
        now_seconds: float,
        *,
        is_awaited: bool,
    ) -> bool:
        """``is_awaited``: whether all engines should pause and only this one has not paused."""
        progress = self._progress.get(_key(engine))
        if progress is None:
            return False
        still_seconds = now_seconds - progress.at_seconds
        others = [
            self._progress[_key(other)]
            for other in engines
            if other is not engine and _key(other) in self._progress
        ]
        others_moved = any(
            other.at_seconds - progress.at_seconds >= _LEAST_AHEAD_SECONDS for other in others
        )
        least = STILL_SECONDS if others_moved or is_awaited else _ALONE_STILL_SECONDS
        return still_seconds >= least


def _holds_requests(engine: EngineFacts) -> bool:
    """Whether an engine that answers reports unpaused requests."""
    is_up = engine.state == "up"
    return is_up and bool(engine.num_running) and not engine.gauges.get("paused_requests")


def _is_pause_awaited(processes: Iterable[ProcessTime]) -> bool:
    """Whether a weight sync has waited long for engines to pause."""
    spans = (span for process in processes for span in process.inflight)
    return any(span.name == _PAUSE and span.elapsed_seconds >= STILL_SECONDS for span in spans)


def _stuck_cause(engine: EngineFacts, seconds: float) -> PipelineCause:
    held = engine.num_running or 0.0
    return PipelineCause(
        "stalled",
        f"rollout {engine.name}",
        sentences.STILL_ENGINE(
            engine=engine.name,
            requests=f"{held:.0f} request{'s' if held != 1 else ''}",
            seconds=seconds_text(seconds),
        ),
        held,
        "requests",
        kind="still engine",
    )


def lost_engines(window: PipelineWindow) -> Iterator[PipelineCause]:
    """Engines that have served this run and no longer answer."""
    for engine in window.last.engines.values():
        seconds = window.last.at_seconds - engine.since_seconds
        # a busy host sometimes answers late
        is_lost = engine.state in {"gone", "garbage"} or (
            engine.state == "slow" and seconds >= _SLOW_TO_ANSWER_SECONDS
        )
        if engine.num_readings and is_lost:
            sentence = sentences.LOST_ENGINE(
                engine=engine.name, state=_LOST[engine.state], reason=engine.reason
            )
            yield PipelineCause("rollout", f"rollout {engine.name}", sentence, kind="lost engine")


class _SlowEngine(NamedTuple):
    """An engine that was found slow."""

    since_seconds: float
    """When it was first found slow."""
    last_seconds: float
    """When it was last found slow."""
    cause: PipelineCause


class SlowEngines:
    """Finds engines that are slower than others for at least 10 s.

    A busy host delays different engines, each only for a short time.
    """

    def __init__(self) -> None:
        self._slow: dict[str, _SlowEngine] = {}

    def causes(self, window: PipelineWindow) -> list[PipelineCause]:
        """Engines that have been slow for at least 10 s."""
        now = window.last.at_seconds
        for cause in _slow_engines(window, self._named()):
            before = self._slow.get(cause.component)
            since = before.since_seconds if before else now
            self._slow[cause.component] = _SlowEngine(since, now, cause)
        self._slow = {
            name: slow
            for name, slow in self._slow.items()
            if now - slow.last_seconds < _DROP_SECONDS
        }
        named = self._named()
        return [slow.cause for name, slow in self._slow.items() if name in named]

    def _named(self) -> set[str]:
        return {
            name
            for name, slow in self._slow.items()
            if slow.last_seconds - slow.since_seconds >= _SLOW_FOR_SECONDS
        }


def _slow_engines(window: PipelineWindow, named: Collection[str]) -> Iterator[PipelineCause]:
    """Engines that are slower than the median of other engines of the same model and kind.

    They must be slower in most of the window. An engine in ``named`` has a lower threshold.
    """
    pairs = {_key(last): (first, last) for first, last in window.engines()}
    for key, (first, last) in pairs.items():
        others = [
            other_key
            for other_key, (_, other) in pairs.items()
            if other_key != key and _is_comparable(other, last)
        ]
        compared = _compared(first, last, [pairs[other_key] for other_key in others])
        ratio = _STILL_SLOWER_RATIO if f"rollout {last.name}" in named else _SLOWER_RATIO
        if compared is None or not compared.is_slower(ratio):
            continue
        peers = [window.states_of(pairs[other_key][1]) for other_key in others]
        if _is_slower_all_along(window.states_of(last), peers):
            yield _slow_cause(last, compared, _busy_seconds(window, first, last))


class _Compared(NamedTuple):
    """Seconds per token of one engine and of others."""

    seconds: float
    usual: float
    """Median of the other engines."""

    def is_slower(self, ratio: float) -> bool:
        more = self.seconds - self.usual
        return self.seconds >= ratio * self.usual and more >= _LEAST_SLOWER_SECONDS


def _compared(
    first: EngineFacts, last: EngineFacts, others: Iterable[tuple[EngineFacts, EngineFacts]]
) -> _Compared | None:
    own = _token_seconds(first, last)
    peers = [seconds for pair in others if (seconds := _token_seconds(*pair)) is not None]
    return _Compared(own, median(peers)) if own is not None and peers else None


def _is_slower_all_along(
    states: Sequence[EngineFacts], peers: Sequence[Sequence[EngineFacts]]
) -> bool:
    """Whether the engine is slower in at least 75 % of the intervals of a window."""
    compared = []
    for index in range(1, len(states)):
        others = [(peer[index - 1], peer[index]) for peer in peers if len(peer) == len(states)]
        comparison = _compared(states[index - 1], states[index], others)
        if comparison is not None:
            compared.append(comparison.is_slower(_EACH_RATIO))
    return len(compared) >= _LEAST_COMPARED and sum(compared) >= _MOSTLY * len(compared)


def _slow_cause(
    engine: EngineFacts, compared: _Compared, busy_seconds: float | None
) -> PipelineCause:
    seconds, usual = compared
    lost = None if busy_seconds is None else busy_seconds * (1.0 - usual / seconds)
    costs = "" if lost is None else f", which costs {seconds_text(lost)} of each step"
    return PipelineCause(
        "rollout",
        f"rollout {engine.name}",
        sentences.SLOW_ENGINE(
            engine=engine.name,
            seconds=seconds_text(seconds),
            usual=seconds_text(usual),
            times=f"{seconds / usual:.2g}",
            cost=costs,
        ),
        lost,
        kind="slow engine",
    )


def _busy_seconds(window: PipelineWindow, first: EngineFacts, last: EngineFacts) -> float | None:
    """Busy time of an engine per step, by its guest, or by its request counters."""
    pair = window.process_of(last)
    if pair is not None and window.num_steps:
        before, after = (process.totals.stage_seconds.get("rollout", 0.0) for process in pair)
        return (after - before) / window.num_steps
    observed = last.observed_seconds - first.observed_seconds
    if observed <= 0:
        return None
    return (last.busy_seconds - first.busy_seconds) / observed * window.step_seconds


def _token_seconds(first: EngineFacts, last: EngineFacts) -> float | None:
    before, after = (engine.histograms.get(_BETWEEN_TOKENS) for engine in (first, last))
    if before is None or after is None:
        return None
    num = after.num - before.num
    return (after.sum - before.sum) / num if num >= _LEAST_TOKENS else None


def _is_comparable(engine: EngineFacts, other: EngineFacts) -> bool:
    return (engine.pd, engine.model) == (other.pd, other.model)


def _key(engine: EngineFacts) -> EngineKey:
    return engine.replica, engine.dp_rank


def busy_ratios(window: PipelineWindow) -> Mapping[str, float]:
    """Share of the last minute in which each engine had requests, by name.

    Empty if an engine was sampled for less than 30 s.
    """
    engines = [last for _, last in window.engines()]
    ratios = {
        engine.name: engine.busy_ratio
        for engine in engines
        if engine.busy_ratio is not None and (engine.window_seconds or 0.0) >= _SAMPLED_SECONDS
    }
    return ratios if len(ratios) == len(engines) else {}
