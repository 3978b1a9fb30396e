"""Steps of a pipeline-parallel job from the seconds of its forwards and backwards.

Each stage does them one forward, one backward in turn (1F1B); at the end of a step the ranks of a
stage meet for their gradients. Seconds may be those of a recorded job, so that a rank can be made
slower in it and the cost for the whole job is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from dfx_agent.facts.layout import DATA, PIPELINE, Layout, RankPosition
from dfx_agent.facts.steps import IDLE, TRANSFER, RankStep, Step

MEETING_SECONDS = 0.02


class Batch(NamedTuple):
    """Seconds of one micro-batch on one rank."""

    forward: float
    backward: float


Work = Mapping[tuple[int, int], Sequence[Batch]]  # (data place, stage) -> its micro-batches


def simulated(
    num_data: int, num_stages: int, num_steps: int, stage_seconds: Callable[[int], float], *,
    jitter: float = 0.01, batch_spread: float = 0.0, num_batches: int = 8, seed: int = 0,
) -> list[Work]:  # fmt: skip
    """Work of each step; ``batch_spread``: how much batches differ, the same in all stages."""
    rng = random.Random(seed)
    found = []
    for _ in range(num_steps):
        sizes = [
            [rng.lognormvariate(0, batch_spread) for _ in range(num_batches)]
            for _ in range(num_data)
        ]
        work: dict[tuple[int, int], list[Batch]] = {}
        for data in range(num_data):
            for stage in range(num_stages):
                seconds = stage_seconds(stage) / num_batches / 3
                rows = [s * seconds * rng.lognormvariate(0, jitter) for s in sizes[data]]
                work[data, stage] = [Batch(row, 2 * row) for row in rows]
        found.append(work)
    return found


def slowed(work: Work, place: tuple[int, int], factor: float) -> Work:
    """The same with one rank that takes that many times as long."""
    rows = [Batch(one.forward * factor, one.backward * factor) for one in work[place]]
    return {**work, place: rows}


def steps_of(works: Sequence[Work]) -> list[Step]:
    """As a judge gets them; ranks are numbered stage by stage."""
    return [_step(number, work) for number, work in enumerate(works)]


def mean_seconds(works: Sequence[Work]) -> float:
    """Of a step."""
    return fmean(next(iter(step.ranks.values())).wall_seconds for step in steps_of(works))


def label_of(work: Work, place: tuple[int, int]) -> str:
    num_data = 1 + max(data for data, _ in work)
    return str(place[1] * num_data + place[0])


def told(work: Work) -> Layout:
    """What Megatron's parallel state says of them."""
    places = {}
    for place in work:
        label = label_of(work, place)
        coordinates = {PIPELINE: place[1], DATA: place[0]}
        places[label] = RankPosition(int(label), coordinates=coordinates)
    return Layout(places)


def inferred(work: Work) -> Layout:
    """Only who sends to whom."""
    places = {}
    for data, stage in work:
        label = label_of(work, (data, stage))
        near = [(data, other) for other in (stage - 1, stage + 1) if (data, other) in work]
        neighbours = tuple(int(label_of(work, place)) for place in near)
        places[label] = RankPosition(int(label), neighbours=neighbours)
    return Layout(places)


def _step(number: int, work: Work) -> Step:
    num_stages = 1 + max(stage for _, stage in work)
    ends: dict[tuple[int, int], float] = {}
    for data in {data for data, _ in work}:
        rows = [work[data, stage] for stage in range(num_stages)]
        ends |= {(data, stage): end for stage, end in enumerate(_pipeline_ends(rows))}
    wall = max(ends.values()) + MEETING_SECONDS
    ranks = {}
    for place, batches in work.items():
        forward, backward = (sum(seconds) for seconds in zip(*batches, strict=True))
        parts = {
            ("stage", "forward"): forward, ("stage", "backward"): backward, IDLE: 0.0, TRANSFER: 0.0
        }  # fmt: skip
        ranks[label_of(work, place)] = RankStep(wall, wall - forward - backward, parts, None)
    ordered = {label: ranks[label] for label in sorted(ranks, key=int)}
    return Step(number, number * wall, 0, ordered)


def _pipeline_ends(rows: Sequence[Sequence[Batch]]) -> list[float]:
    """When each stage of one pipeline is done."""
    num_stages, num_batches = len(rows), len(rows[0])
    queues = [_order(stage, num_stages, num_batches) for stage in range(num_stages)]
    now, done = [0.0] * num_stages, dict[tuple[str, int, int], float]()
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                way, batch = queue[0]
                other = stage - 1 if way == "forward" else stage + 1
                needs = (way, other, batch)
                if 0 <= other < num_stages and needs not in done:
                    break
                begin = max(now[stage], done.get(needs, 0.0))
                now[stage] = begin + getattr(rows[stage][batch], way)
                done[way, stage, batch] = now[stage]
                queue.pop(0)
    return now


def _order(stage: int, num_stages: int, num_batches: int) -> list[tuple[str, int]]:
    num_first = min(num_stages - stage - 1, num_batches)
    order = [("forward", batch) for batch in range(num_first)]
    for batch in range(num_batches - num_first):
        order += [("forward", num_first + batch), ("backward", batch)]
    return order + [("backward", batch) for batch in range(num_batches - num_first, num_batches)]
