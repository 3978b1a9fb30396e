"""How late a process' event loop wakes, and who held it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LagStats:
    """Seconds by which a callback that is wanted now comes later, at any moment of a time.

    ``num_samples`` are answers of the loop. Moments in which it could not answer count too: an
    answer that took 2 s stands for one late by 2 s, one by 1.9 s and so on (the correction for
    coordinated omission of HdrHistogram).
    """

    num_samples: int
    mean_seconds: float
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    max_seconds: float


@dataclass(frozen=True, slots=True)
class LoopHolder:
    """Code that kept a loop from answering: ``coroutine > function > innermost function``."""

    name: str
    seconds: float
    num_times: int
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class EventLoopRow:
    """Of one process. ``window`` is the newest minute, ``step`` the newest step that is over.

    ``late_seconds`` of that minute the loop was late by 0.1 s or more; ``holders``, most first, for
    that long. ``late_seconds_total`` is the same since it was first seen. ``window_seconds`` is
    shorter than a minute where the loop was not seen so long.
    """

    window_seconds: float
    window: LagStats
    step: LagStats | None
    late_seconds: float
    holders: tuple[LoopHolder, ...]
    late_seconds_total: float = 0.0
