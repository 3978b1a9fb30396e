"""How late event loops wake, and who holds them, as the guest measures it."""

from dfx_agent.catalogue.spec import PER_RANK, Metric
from dfx_agent.snapshot import RankRow

_STATS = ("mean", "p50", "p90", "p99", "max")


def _lags(rank: RankRow) -> dict[tuple[str, ...], float] | None:
    loop = rank.event_loop
    if loop is None:
        return None
    return {(stat,): getattr(loop.window, f"{stat}_seconds") for stat in _STATS}


def _late_ratio(rank: RankRow) -> float | None:
    loop = rank.event_loop
    if loop is None or loop.window_seconds <= 0.0:
        return None
    return min(1.0, loop.late_seconds / loop.window_seconds)


def _held(rank: RankRow) -> dict[tuple[str, ...], float] | None:
    loop = rank.event_loop
    return None if loop is None else {(held.name,): held.seconds for held in loop.holders}


LAG_SECONDS = Metric(
    "dfx_asyncio_lag_seconds", "gauge", "seconds", (*PER_RANK, "stat"),
    "Delay with which the process's event loop runs a due callback, in the last minute: mean, "
    "p50, p90, p99, max (stat).", "shim",
    subject="rank", value=_lags,
)  # fmt: skip
LAG_SAMPLES = Metric(
    "dfx_asyncio_lag_samples", "gauge", "", PER_RANK,
    "Answers of the event loop behind dfx_asyncio_lag_seconds.", "shim",
    subject="rank", value=lambda rank: rank.event_loop and rank.event_loop.window.num_samples,
)  # fmt: skip
LATE_RATIO = Metric(
    "dfx_asyncio_late_ratio", "gauge", "ratio", PER_RANK,
    "Share of the last minute in which the event loop was late by 0.1 s or more.", "shim",
    subject="rank", value=_late_ratio,
)  # fmt: skip
HELD_SECONDS = Metric(
    "dfx_asyncio_held_seconds", "gauge", "seconds", (*PER_RANK, "holder"),
    "Time in the last minute for which one piece of code blocked the event loop; "
    "holder is task > coroutine > function > innermost function.", "shim",
    subject="rank", value=_held,
)  # fmt: skip
CODE_RATIO = Metric(
    "dfx_asyncio_held_by_code_ratio", "gauge", "ratio", PER_RANK,
    "Share of the blocked time of the event loop, in the last minute, that code of the process "
    "caused. In the rest its thread was runnable but got no CPU.", "shim",
    subject="rank", value=lambda rank: rank.event_loop and rank.event_loop.code_ratio,
)  # fmt: skip
