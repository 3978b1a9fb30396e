"""What the guest itself measures that it costs, from the segments that a job has left."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.estimates import median
from bench.measurement import Baseline, Result
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import GAUGE, KIND_MASK, STEP

_GAUGE = "guest/overhead_ratio"


@dataclass(frozen=True)
class _Rank:
    """``percents``: one for each window of the meter; ``step_ms``: length of the steps."""

    percents: list[float]
    step_ms: list[float]


def metered(job: str, folder: str, num_ranks: int, in_place: Result | None = None) -> Result:
    """Of the rank with the largest share; ``in_place``: the same share timed by the bench.

    RuntimeError where a rank has measured nothing: it ran for less than a window.
    """
    ranks = [_read(path) for path in Path(folder).glob("*.seg")]
    ranks = [rank for rank in ranks if rank.percents]
    if len(ranks) != num_ranks:
        raise RuntimeError(f"{len(ranks)} of {num_ranks} ranks have measured what the guest costs")
    most = max(ranks, key=lambda rank: median(rank.percents))
    percent, step_ms = median(most.percents), median(most.step_ms)
    return Result(
        name=f"{job} guest's cost, by its own meter",
        value=percent,
        unit="% of the time",
        n=len(most.percents),
        spread={"low": min(most.percents), "high": max(most.percents)},
        baseline=Baseline(in_place.name, in_place.value) if in_place else None,
        note=f"steps of {step_ms:.0f} ms: {percent / 100 * step_ms:.1f} ms of each; {num_ranks} "
        f"ranks, the one with the largest share; smallest and largest of its windows",
    )


def _read(path: Path) -> _Rank:
    reader = SegmentReader(str(path))
    percents, begins_ns = list[float](), list[int]()
    while batch := reader.poll():
        for record in batch:
            kind = record[8] & KIND_MASK
            if kind == STEP:
                begins_ns.append(record[1])
            elif kind == GAUGE and reader.name(record[9]) == _GAUGE:
                percents.append(100 * record[3])
    reader.close()
    return _Rank(percents, [(end - begin) / 1e6 for begin, end in pairwise(begins_ns)])
