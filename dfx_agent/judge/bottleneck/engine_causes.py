"""Rollout engines that stand still, or are slower than those that do the same work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.pipeline import ProcessTime
from dfx_agent.judge.bottleneck import sentences
from dfx_agent.judge.bottleneck.step_shares import WEIGHT_SYNC
from dfx_agent.judge.bottleneck.window import EngineKey, Window
from dfx_agent.snapshot import EngineFacts, PipelineCause

# an engine with requests that has moved nothing for so long stands still, if others move
STILL_SECONDS = 10.0
_LEAST_AHEAD_SECONDS = 5.0
_ALONE_STILL_SECONDS = 120.0

_BETWEEN_TOKENS = "inter_token_latency_seconds"
_LEAST_TOKENS = 20.0
_SAMPLED_SECONDS = 30.0
_SLOW_FOR_SECONDS, _LET_GO = 10.0, 8.0
_SLOWER_RATIO, _STILL_SLOWER_RATIO = 1.5, 1.3
_EACH_RATIO, _MOSTLY, _LEAST_COMPARED = 1.3, 0.75, 2
_LEAST_SLOWER_SECONDS = 0.001
_SLOW_TO_ANSWER_SECONDS = 20.0
_LOST = {"gone": "gone", "slow": "too slow to answer", "garbage": "not understood"}
_PAUSE = f"{WEIGHT_SYNC}_pause"
_MOVES = ("generation_tokens", "prompt_tokens", "finished_requests")


@dataclass
class _Seen:
    moved: tuple[float, ...]
    at_seconds: float
    is_first: bool = True


class StillEngines:
    """Watches what engines count: one that has requests and moves none of them is named."""

    def __init__(self) -> None:
        self._seen: dict[EngineKey, _Seen] = {}

    def causes(
        self, engines: Sequence[EngineFacts], processes: Iterable[ProcessTime], now_seconds: float
    ) -> list[PipelineCause]:
        """Who stands still now. ``processes`` of engines say whether they were told to wait."""
        known = list(processes)
        waiting = {p.pid for p in known if any(s.name == "policy" for s in p.inflight)}
        for engine in engines:
            self._see(engine)
        at_work = [e for e in engines if e.pid not in waiting and _holds(e)]
        is_awaited = len(at_work) == 1 < len(engines) and _is_pause_awaited(known)
        return [
            _still(engine, now_seconds - self._seen[_key(engine)].at_seconds)
            for engine in at_work
            if self._stands(engine, engines, now_seconds, is_awaited=is_awaited)
        ]

    def all_still_seconds(self, engines: Sequence[EngineFacts], now_seconds: float) -> float:
        """How long all engines have held requests and moved none; 0 where one goes on."""
        seen = [self._seen.get(_key(engine)) for engine in engines if engine.num_running]
        known = [now_seconds - each.at_seconds for each in seen if each is not None]
        return min(known, default=0.0) if known and len(seen) == len(engines) else 0.0

    def _see(self, engine: EngineFacts) -> None:
        moved = tuple(engine.totals.get(name, 0.0) for name in _MOVES)
        known = self._seen.get(_key(engine))
        is_idle = not engine.num_running or engine.sleep_state not in {"", "awake"}
        if engine.read_seconds is None:
            return
        if known is None or known.moved != moved or is_idle:
            self._seen[_key(engine)] = _Seen(moved, engine.read_seconds, known is None)

    def _stands(
        self,
        engine: EngineFacts,
        engines: Iterable[EngineFacts],
        now_seconds: float,
        *,
        is_awaited: bool,
    ) -> bool:
        """``is_awaited``: a pause of all engines is waited for, of this one alone."""
        seen = self._seen.get(_key(engine))
        if seen is None:
            return False
        still_seconds = now_seconds - seen.at_seconds
        others = [self._seen[_key(e)] for e in engines if e is not engine and _key(e) in self._seen]
        went_on = any(o.at_seconds - seen.at_seconds >= _LEAST_AHEAD_SECONDS for o in others)
        least = STILL_SECONDS if went_on or is_awaited else _ALONE_STILL_SECONDS
        return still_seconds >= least


def _holds(engine: EngineFacts) -> bool:
    """Whether it says that it has requests to move; of one that does not answer that is old."""
    is_up = engine.state == "up"
    return is_up and bool(engine.num_running) and not engine.gauges.get("paused_requests")


def _is_pause_awaited(processes: Iterable[ProcessTime]) -> bool:
    """Whether somebody who brings new weights has asked engines to pause, long ago."""
    spans = (span for process in processes for span in process.inflight)
    return any(s.name == _PAUSE and s.elapsed_seconds >= STILL_SECONDS for s in spans)


def _still(engine: EngineFacts, seconds: float) -> PipelineCause:
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


def lost_engines(window: Window) -> Iterator[PipelineCause]:
    """Those that have served in this run, and do not answer any more."""
    for engine in window.last.engines.values():
        seconds = window.last.at_seconds - engine.since_seconds
        # a host that is short of processors answers late now and then
        is_lost = engine.state in {"gone", "garbage"} or (
            engine.state == "slow" and seconds >= _SLOW_TO_ANSWER_SECONDS
        )
        if engine.num_readings and is_lost:
            sentence = sentences.LOST_ENGINE(
                engine=engine.name, state=_LOST[engine.state], reason=engine.reason
            )
            yield PipelineCause("rollout", f"rollout {engine.name}", sentence, kind="lost engine")


class _Slow(NamedTuple):
    """An engine that was found slow: since when, when last, and what was said then."""

    since_seconds: float
    last_seconds: float
    cause: PipelineCause


class SlowEngines:
    """Who is slower than the others for a while: a busy host holds up now one, now another."""

    def __init__(self) -> None:
        self._slow: dict[str, _Slow] = {}

    def causes(self, window: Window) -> list[PipelineCause]:
        now = window.last.at_seconds
        for cause in _slow_engines(window, self._named()):
            known = self._slow.get(cause.component)
            since = known.since_seconds if known else now
            self._slow[cause.component] = _Slow(since, now, cause)
        self._slow = {
            name: slow for name, slow in self._slow.items() if now - slow.last_seconds < _LET_GO
        }
        named = self._named()
        return [slow.cause for name, slow in self._slow.items() if name in named]

    def _named(self) -> set[str]:
        slow = self._slow.items()
        return {n for n, s in slow if s.last_seconds - s.since_seconds >= _SLOW_FOR_SECONDS}


def _slow_engines(window: Window, named: Collection[str]) -> Iterator[PipelineCause]:
    """Each against the median of the others that serve the same model in the same way.

    All along the window, not once. Who was ``named`` needs less.
    """
    pairs = {_key(last): (first, last) for first, last in window.engines()}
    for key, (first, last) in pairs.items():
        others = [k for k, (_, o) in pairs.items() if k != key and _is_alike(o, last)]
        compared = _compared(first, last, [pairs[k] for k in others])
        ratio = _STILL_SLOWER_RATIO if f"rollout {last.name}" in named else _SLOWER_RATIO
        if compared is None or not compared.is_slower(ratio):
            continue
        peers = [window.states_of(pairs[k][1]) for k in others]
        if _is_slower_all_along(window.states_of(last), peers):
            yield _slow(last, compared, _busy_seconds(window, first, last))


class _Compared(NamedTuple):
    """Seconds for a token: of one engine, and the median of the others."""

    seconds: float
    usual: float

    def is_slower(self, ratio: float) -> bool:
        more = self.seconds - self.usual
        return self.seconds >= ratio * self.usual and more >= _LEAST_SLOWER_SECONDS


def _compared(
    first: EngineFacts, last: EngineFacts, others: Iterable[tuple[EngineFacts, EngineFacts]]
) -> _Compared | None:
    own = _token_seconds(first, last)
    known = [seconds for pair in others if (seconds := _token_seconds(*pair)) is not None]
    return _Compared(own, median(known)) if own is not None and known else None


def _is_slower_all_along(
    states: Sequence[EngineFacts], peers: Sequence[Sequence[EngineFacts]]
) -> bool:
    """Between the moments of a window, in all but a quarter of what can be compared."""
    compared = []
    for at in range(1, len(states)):
        others = [(p[at - 1], p[at]) for p in peers if len(p) == len(states)]
        found = _compared(states[at - 1], states[at], others)
        if found is not None:
            compared.append(found.is_slower(_EACH_RATIO))
    return len(compared) >= _LEAST_COMPARED and sum(compared) >= _MOSTLY * len(compared)


def _slow(engine: EngineFacts, compared: _Compared, busy_seconds: float | None) -> PipelineCause:
    seconds, usual = compared
    lost = None if busy_seconds is None else busy_seconds * (1.0 - usual / seconds)
    costs = "" if lost is None else f", {seconds_text(lost)} of each step"
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


def _busy_seconds(window: Window, first: EngineFacts, last: EngineFacts) -> float | None:
    """Of a step: by its guest where it has one, else by what it says of its requests."""
    known = window.process_of(last)
    if known is not None and window.num_steps:
        before, after = (process.totals.stage_seconds.get("rollout", 0.0) for process in known)
        return (after - before) / window.num_steps
    observed = last.observed_seconds - first.observed_seconds
    if observed <= 0:
        return None
    return (last.busy_seconds - first.busy_seconds) / observed * window.step_seconds


def _token_seconds(first: EngineFacts, last: EngineFacts) -> float | None:
    before, after = (e.histograms.get(_BETWEEN_TOKENS) for e in (first, last))
    if before is None or after is None:
        return None
    num = after.num - before.num
    return (after.sum - before.sum) / num if num >= _LEAST_TOKENS else None


def _is_alike(a: EngineFacts, b: EngineFacts) -> bool:
    return (a.pd, a.model) == (b.pd, b.model)


def _key(engine: EngineFacts) -> EngineKey:
    return engine.replica, engine.dp_rank


def busy_ratios(window: Window) -> Mapping[str, float]:
    """Name of an engine -> share of the newest minute in which it had requests.

    None of them where that is known for less than half a minute: it is sampled every 2 s.
    """
    engines = [last for _, last in window.engines()]
    known = {
        engine.name: engine.busy_ratio
        for engine in engines
        if engine.busy_ratio is not None and (engine.window_seconds or 0.0) >= _SAMPLED_SECONDS
    }
    return known if len(known) == len(engines) else {}
