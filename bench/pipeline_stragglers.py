"""The straggler verdict over recorded jobs with pipeline parallelism, as they were and slowed.

The recordings are not in the repository: $DFX_PIPELINE_TRACES is a folder of trace-NAME.parquet as
github.com/ByteDance-Seed/StragglerAnalysis has them in data/ (pyarrow reads them). As they were:
who is accused in any look. Slowed: each rank in turn takes 1.6 times as long from a step on, its
job is simulated anew, and the amount that the verdict tells is compared with what it costs.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.estimates import median, quantile, share_interval
from bench.measurement import Result, report
from bench.simulated_pipeline import (
    Batch,
    Work,
    label_of,
    mean_seconds,
    slowed,
    steps_of,
    told,
)
from dfx_agent.facts.layout import DATA, PIPELINE, Layout, RankPosition
from dfx_agent.facts.steps import IDLE, TRANSFER, Part, RankStep, RoleSteps, Step
from dfx_agent.judge.straggler.judge import StragglerJudge
from dfx_agent.snapshot import Verdict

# which rank of which recording was slowed by those who recorded it, as their readme says
TRUTH = {"ST": (), "AR": ("0",), "SE": ()}
FACTOR = 1.6
KEPT_STEPS = 32  # by the agent
SINCE = 10
_WORK = ("forward-compute", "backward-compute", "optimizer")
_NOT_WAITED = (*_WORK, "gc", "optimizer-clip-main-grad")

Row = dict[str, Any]
Span = tuple[float, float]


class Look(NamedTuple):
    """A verdict after so many steps."""

    num_steps: int
    verdict: Verdict


def measure(*, quick: bool) -> list[Result]:
    folder = Path(os.environ.get("DFX_PIPELINE_TRACES", ""))
    rows = []
    for name, ranks in TRUTH.items():
        path = folder / f"trace-{name}.parquet"
        if not path.is_file():
            print(f"bench: no {path}: left out", file=sys.stderr)
            continue
        recorded = list(_rows(path))
        for kind, layout in (("told", recorded_layout), ("by sends", recorded_sends)):
            rows.append(_as_recorded(name, kind, recorded, ranks, layout))
        rows += _slowed_rows(name, [_healed(w, ranks) for w in works(recorded)], quick=quick)
    return rows


def looks(steps: Sequence[Step], layout: Layout) -> list[Look]:
    """The verdict after each step, as a judge gives them that goes on from the one before."""
    judge, found = StragglerJudge(), []
    for end in range(1, len(steps) + 1):
        stored = tuple(steps[max(0, end - KEPT_STEPS) : end])
        num_ranks = len(stored[-1].ranks)
        verdict = judge.verdict(RoleSteps("trainer", stored, None, num_ranks, num_ranks, layout))
        assert verdict is not None
        found.append(Look(end, verdict))
    return found


def _as_recorded(
    name: str, kind: str, recorded: list[Row], ranks: tuple[str, ...],
    layout: Callable[[list[Row]], Layout],
) -> Result:  # fmt: skip
    seen = looks(recorded_steps(recorded), layout(recorded))
    wrong = sum(bool(set(look.verdict.ranks) - set(ranks)) for look in seen)
    first = next((look.num_steps for look in seen if ranks and look.verdict.ranks == ranks), 0)
    last = seen[-1].verdict
    named = f"{', '.join(ranks)} named after {first} steps; " if ranks else ""
    note = f"{named}last: {last.summary}"
    return _share(f"{name}, layout {kind}: looks that accuse others", wrong, len(seen), note)


def _healed(work: Work, ranks: tuple[str, ...]) -> Work:
    """A rank that was slow as recorded takes what the next one of its stage takes."""
    slow = [place for place in work if label_of(work, place) in ranks]
    return {**work, **{(data, stage): work[data + 1, stage] for data, stage in slow}}


def _slowed_rows(name: str, known: list[Work], *, quick: bool) -> list[Result]:
    """A rank that costs nothing where another stage is longer must not be named."""
    after, errors, wrong, missed, num_hidden = [], [], 0, 0, 0
    places = sorted(known[0])[:: 8 if quick or len(known[0]) > 32 else 1]
    for place in places:
        job = [slowed(w, place, FACTOR) if n >= SINCE else w for n, w in enumerate(known)]
        cost = mean_seconds(job[SINCE:]) - mean_seconds(known[SINCE:])
        label = label_of(job[0], place)
        seen = looks(steps_of(job), told(job[0]))
        wrong += any(set(look.verdict.ranks) - {label} for look in seen)
        found = [look for look in seen if look.verdict.state == "found"]
        hits = [look for look in found if look.verdict.ranks == (label,)]
        if cost < 0.05 * mean_seconds(known):
            num_hidden += 1
        elif not hits:
            missed += 1
        else:
            after.append(float(hits[0].num_steps - SINCE))
            errors.append(abs((hits[-1].verdict.lost_seconds or 0.0) / cost - 1))
    note = f"{num_hidden} cost below 5 %, {missed} of the others not named"
    rows = [_share(f"{name}, slowed: runs that accuse others", wrong, len(places), note)]
    told_of = {("named after", "steps"): after, ("error of the amount", ""): errors}
    for (what, unit), values in told_of.items():
        if values:
            spread = {"p10": quantile(values, 0.1), "p90": quantile(values, 0.9)}
            title = f"{name}, slowed: {what}"
            rows.append(Result(title, median(values), unit, len(values), spread))
    return rows


def _share(name: str, number: int, of: int, note: str) -> Result:
    low, high = share_interval(number, of)
    return Result(name, number / of, "", of, {"low": low, "high": high}, note=note)


def _rows(path: Path) -> Iterator[Row]:
    table = importlib.import_module("pyarrow.parquet").read_table(path)
    yield from table.to_pylist()


def recorded_layout(rows: list[Row]) -> Layout:
    places = {(row["dp_rank"], row["stage"]): row["rank"] for row in rows}
    return Layout(
        {
            str(rank): RankPosition(rank, coordinates={PIPELINE: stage, DATA: data})
            for (data, stage), rank in places.items()
        }
    )


def recorded_sends(rows: list[Row]) -> Layout:
    ranks = {(row["dp_rank"], row["stage"]): row["rank"] for row in rows}
    near = {
        rank: [ranks[data, s] for s in (stage - 1, stage + 1) if (data, s) in ranks]
        for (data, stage), rank in ranks.items()
    }
    return Layout({str(rank): RankPosition(rank, neighbours=tuple(n)) for rank, n in near.items()})


def recorded_steps(rows: list[Row]) -> list[Step]:
    """Sends, receives and collectives are waits; what lies between is outside all stages."""
    by_step: dict[int, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_step[row["step"]][row["rank"]].append(row)
    return [
        Step(
            number, 0.0, 0, {str(rank): _rank_step(entry) for rank, entry in sorted(ranks.items())}
        )
        for number, ranks in sorted(by_step.items())
    ]


def _rank_step(rows: list[Row]) -> RankStep:
    spans = [(row["optype"], row["start_ts"], row["start_ts"] + row["duration"]) for row in rows]
    wall = max(end for _, _, end in spans) - min(begin for _, begin, _ in spans)
    worked = _union((begin, end) for kind, begin, end in spans if kind in _WORK)
    waits = _union((begin, end) for kind, begin, end in spans if kind not in _NOT_WAITED)
    waited = _length(_union([*worked, *waits])) - _length(worked)
    parts: dict[Part, float] = defaultdict(float)
    for kind, begin, end in spans:
        if kind in _WORK:
            parts["stage", kind] += end - begin
    parts[IDLE] = max(0.0, wall - waited - sum(parts.values()))
    return RankStep(wall, waited, {**parts, TRANSFER: 0.0}, None)


def works(rows: list[Row]) -> list[Work]:
    """Of steps of which all micro-batches were recorded."""
    by_step: dict[int, dict[tuple[int, int], dict[int, dict[str, float]]]] = defaultdict(dict)
    for row in rows:
        if row["optype"] in _WORK[:2]:
            batches = by_step[row["step"]].setdefault((row["dp_rank"], row["stage"]), {})
            batches.setdefault(row["seq_id"], {})[row["optype"]] = row["duration"]
    return [
        {
            place: [Batch(both[_WORK[0]], both[_WORK[1]]) for _, both in sorted(batches.items())]
            for place, batches in places.items()
        }
        for _, places in sorted(by_step.items())
    ]


def _union(spans: Any) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _length(spans: Sequence[Span]) -> float:
    return sum(end - begin for begin, end in spans)


if __name__ == "__main__":
    report(measure)
