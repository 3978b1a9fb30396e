"""Steps of a training job as the straggler verdict gets them: noise, tokens and slow ranks as told.

No process runs: thousands of healthy steps in seconds, with noise of a known size.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dfx_agent.facts.steps import IDLE, TRANSFER, Part, RankStep, Step

Slow = Callable[[int, int, Part, float], float]

ROLLOUT, UPDATE, SYNC = ("stage", "rollout"), ("stage", "actor_update"), ("stage", "weight_sync")
# Parts of a step with their seconds; after each block all ranks meet.
BLOCKS: list[dict[Part, float]] = [
    {IDLE: 0.01, ROLLOUT: 0.5},
    *[{UPDATE: 0.1, TRANSFER: 0.01} for _ in range(4)],
    {SYNC: 0.04, TRANSFER: 0.01},
]
STEP_SECONDS = sum(sum(block.values()) for block in BLOCKS)


@dataclass
class Job:
    """A run of equal ranks; ``slow`` adds to parts of a rank, ``tokens`` scale its rollout.

    ``jitter`` is of the work itself. With ``stalls`` the processor is somebody else's for a share
    of its time, half normal with that deviation, and the processor time of the work is known.
    """

    num_ranks: int = 4
    jitter: float = 0.02
    outlier_ratio: float = 0.0
    slow: Slow = lambda step, rank, part, seconds: seconds
    tokens: Callable[[random.Random, int], float] | None = None
    work_per_token: float = 0.0
    stalls: float | None = None
    seed: int = 0
    injected: list[float] = field(default_factory=list)

    def steps(self, num_steps: int) -> list[Step]:
        rng = random.Random(self.seed)
        return [self._step(rng, number) for number in range(1, num_steps + 1)]

    def _step(self, rng: random.Random, number: int) -> Step:
        ranks = range(self.num_ranks)
        tokens = [self.tokens(rng, rank) if self.tokens else 1000.0 for rank in ranks]
        noise = [rng.lognormvariate(0, self.jitter) for _ in ranks]
        noise = [x * 3 if rng.random() < self.outlier_ratio else x for x in noise]
        parts: list[dict[Part, float]] = [{} for _ in ranks]
        waited, busy, added = [0.0] * self.num_ranks, [0.0] * self.num_ranks, 0.0
        stalled = [1 + abs(rng.gauss(0, self.stalls)) if self.stalls else 1.0 for _ in ranks]
        for block in BLOCKS:
            work = []
            for rank in ranks:
                share = 1 + self.work_per_token * (tokens[rank] / 1000 - 1)
                plain = {part: s * noise[rank] * share for part, s in block.items()}
                taken = {p: self.slow(number, rank, p, s) for p, s in plain.items()}
                added += sum(taken.values()) - sum(plain.values())
                busy[rank] += sum(taken.values())
                taken = {part: s * stalled[rank] for part, s in taken.items()}
                work.append(sum(taken.values()))
                for part, seconds in taken.items():
                    parts[rank][part] = parts[rank].get(part, 0.0) + seconds
            for rank in ranks:
                waited[rank] += max(work) - work[rank]
        self.injected.append(added)
        known = self.tokens is not None
        cells = {
            str(r): RankStep(
                sum(parts[r].values()) + waited[r],
                waited[r],
                parts[r],
                {"all": tokens[r]} if known else None,
                busy_seconds=None if self.stalls is None else busy[r],
            )
            for r in ranks
        }
        return Step(number, float(number), 0, cells)


def slower(rank: int, factor: float, *only: Part, since: int = 0, until: int = 10**6) -> Slow:
    """A ``Job.slow``: this rank takes that many times as long, in all parts or only in some."""

    def slow(step: int, other: int, part: Part, seconds: float) -> float:
        hit = other == rank and since <= step <= until and (not only or part in only)
        return seconds * factor if hit else seconds

    return slow


def same_tokens(rng: random.Random, rank: int) -> float:
    return 1000 * rng.lognormvariate(0, 0.03)
