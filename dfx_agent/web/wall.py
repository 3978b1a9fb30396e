"""One number per rank for the wall of ranks: its work, waits, memory and tokens, as ratios.

Columns in the order of the run's ranks, rounded so that a stream sends what a colour can show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from dfx_agent.snapshot import RankRow, RunRow, StepCell, TimeSplit
from dfx_agent.web.visible_ranks import RankKey, key_of

Column = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Wall:
    """None where a rank has no such value; empty columns where no rank has."""

    work: Column = ()
    """Active seconds of the last step / median of the ranks of its role."""
    wait: Column = ()
    """Share of the last step in which it waited."""
    memory: Column = ()
    """Of the fullest device: allocated / limit. Without devices host memory / that of the most."""
    tokens: Column = ()
    """Tokens of the latest closed step / median of the ranks of its role."""


def wall_of(run: RunRow, cells: Mapping[RankKey, StepCell]) -> Wall:
    """``cells``: of each rank its latest closed step."""
    ranks = run.ranks
    work = (rank.last.active_seconds if rank.last else None for rank in ranks)
    tokens = (_tokens(cells.get(key_of(rank))) for rank in ranks)
    wait = (_wait_ratio(rank.last) if rank.last else None for rank in ranks)
    return Wall(
        _column(_to_median(ranks, work)),
        _column(wait),
        _column(_memory(ranks)),
        _column(_to_median(ranks, tokens)),
    )


def _column(values: Iterable[float | None]) -> Column:
    column = tuple(None if value is None else round(value, 2) for value in values)
    return () if all(value is None for value in column) else column


def _to_median(ranks: Iterable[RankRow], values: Iterable[float | None]) -> list[float | None]:
    by_role: dict[str, list[float]] = {}
    pairs = [(rank.role, value) for rank, value in zip(ranks, values, strict=True)]
    for role, value in pairs:
        if value is not None:
            by_role.setdefault(role, []).append(value)
    middle = {role: median(reported) for role, reported in by_role.items()}
    return [
        None if value is None or not middle[role] else value / middle[role]
        for role, value in pairs
    ]  # fmt: skip


def _tokens(cell: StepCell | None) -> float | None:
    """The sum of all kinds, where no total is reported."""
    if cell is None or not cell.tokens:
        return None
    return cell.tokens.get("total", sum(cell.tokens.values()))


def _wait_ratio(split: TimeSplit) -> float | None:
    waited = sum(sum(by_stage.values()) for by_stage in split.wait_seconds.values())
    return waited / split.wall_seconds if split.wall_seconds > 0 else None


def _memory(ranks: Iterable[RankRow]) -> list[float | None]:
    rows = list(ranks)
    devices = [_device_ratio(rank) for rank in rows]
    if any(ratio is not None for ratio in devices):
        return devices
    hosts = [rank.host_memory.anonymous_bytes if rank.host_memory else None for rank in rows]
    most = max((num_bytes for num_bytes in hosts if num_bytes is not None), default=0.0)
    return [None if num_bytes is None or not most else num_bytes / most for num_bytes in hosts]


def _device_ratio(rank: RankRow) -> float | None:
    ratios = (
        device.allocated_bytes / device.limit_bytes
        for device in rank.devices
        if device.allocated_bytes is not None and device.limit_bytes
    )
    return max(ratios, default=None)
