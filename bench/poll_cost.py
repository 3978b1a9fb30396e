"""Processor time of one reading of many ranks: none of them has news, or all of them.

The baseline reads every rank closely at each reading, as it would be without the short look; the
two alternate in the same process. Busy: each rank has written a step with three stages meanwhile.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from unittest.mock import patch

from bench.measurement import Bar, Result, median_of, of_samples, report
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.base.own_memory import IN_AN_AGENT, collect_rarely
from dfx_agent.node.segments.reader import Follower
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import STAGE, STEP

# ranks -> milliseconds that a reading without news may take: a tenth of what it took at 9642c4b
BARS = {64: 2.0, 256: 8.4, 1024: 37.1}
STAGES = ("rollout", "forward", "backward")


class _Job:
    """Ranks of one job; this process writes them all, so that they all live."""

    def __init__(self, folder: str, num_ranks: int) -> None:
        self._ranks = [
            SegmentWriter(folder, _identity(rank, num_ranks), num_records=256)
            for rank in range(num_ranks)
        ]
        self._names = [[rank.add_name(name) for name in STAGES] for rank in self._ranks]
        self._step = 0

    def step(self) -> None:
        self._step += 1
        for rank, names in zip(self._ranks, self._names, strict=True):
            now = time.monotonic_ns()
            rank.emit(now, now, 0.0, self._step, 0, 0, 0, STEP, 0)
            for i, name in enumerate(names):
                span = 3 * self._step + i
                rank.emit(now + i, now + i + 1, 0.0, self._step, span, 0, 1, STAGE, name)

    def enter(self) -> None:
        """A stage that stays open: nobody has news, and time goes on."""
        for rank, names in zip(self._ranks, self._names, strict=True):
            rank.inflight.enter(time.monotonic_ns(), self._step, 10**6, 0, 1, STAGE, names[0])

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()


def _identity(rank: int, num_ranks: int) -> Identity:
    return Identity(run="r", role="trainer", rank=rank, world_size=num_ranks)


def measure(*, quick: bool) -> list[Result]:
    rows = []
    for num_ranks, bar in BARS.items():
        rows += _measure(num_ranks, 3 if quick else 30, Bar(bar))
    return rows


def _measure(num_ranks: int, num_samples: int, bar: Bar) -> list[Result]:
    closely: list[float] = []
    idle: list[float] = []
    busy: list[float] = []
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        job, agent = _Job(folder, num_ranks), Agent(Config(folder), reap=False)
        for _ in range(5):
            job.step()
            agent.poll()
        collect_rarely(IN_AN_AGENT)  # as a serving agent does
        for _ in range(num_samples):
            job.step()
            busy.append(_milliseconds(agent.poll))
            agent.poll()  # what this one brings is accounted one reading later
        job.enter()
        for _ in range(2):
            agent.poll()
        for _ in range(num_samples):
            idle.append(_milliseconds(agent.poll))
            with patch.object(Follower, "is_quiet", lambda _: False):
                closely.append(_milliseconds(agent.poll))
        job.close()
    name = f"a reading of {num_ranks:,} ranks"
    full = median_of("every rank read closely", closely)
    unit = "ms of processor time"
    return [
        of_samples(f"{name} without news", idle, unit, baseline=full, bar=bar),
        of_samples(f"{name}, a step of each", busy, unit, baseline=full),
    ]


def _milliseconds(call: Callable[[], None]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF)
    call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


if __name__ == "__main__":
    report(measure)
