"""What the guest itself says that it costs, from the segments that a job has left."""

from __future__ import annotations

from pathlib import Path

from bench.estimates import median
from bench.measurement import Baseline, Result
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import GAUGE, KIND_MASK

_GAUGE = "guest/overhead_ratio"


def metered(job: str, folder: str, num_ranks: int, spent: Result | None = None) -> Result:
    """Of the rank that says most; ``spent``: the same share measured by other means.

    RuntimeError where a rank says nothing: it ran for less than a window.
    """
    ranks = [percents for path in Path(folder).glob("*.seg") if (percents := _percents(path))]
    if len(ranks) != num_ranks:
        raise RuntimeError(f"{len(ranks)} of {num_ranks} ranks say what the guest costs")
    most = max(ranks, key=median)
    return Result(
        name=f"{job} guest's cost, by its own meter",
        value=median(most),
        unit="% of the time",
        n=len(most),
        spread={"low": min(most), "high": max(most)},
        baseline=Baseline(spent.name, spent.value) if spent else None,
        note=f"{num_ranks} ranks, the one that says most; smallest and largest of its windows",
    )


def _percents(path: Path) -> list[float]:
    reader = SegmentReader(str(path))
    found = []
    while batch := reader.poll():
        gauges = [record for record in batch if record[8] & KIND_MASK == GAUGE]
        found += [100 * record[3] for record in gauges if reader.name(record[9]) == _GAUGE]
    reader.close()
    return found
