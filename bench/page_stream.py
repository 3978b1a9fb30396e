"""What one open page costs an agent of 8, 64 and 1,024 ranks: bytes, and processor time.

The job is the scripted one of the tests, a step every 5 s. A reading, then a look of the stream as
it is paced: what it takes of a processor (rendering the snapshot, the view, what changed) and what
it sends. The baseline is as it was: whole snapshots, 4 a second or as many as a core can make.
Readings are the agent's, with or without a page, and are not counted (``poll_cost`` does).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measurement import Bar, Baseline, Result, median_of, of_samples, report
from bench.served_agent import running
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.snapshot import Snapshot
from dfx_agent.snapshot.document import Document
from dfx_agent.web.stream import MAX_SHARE, REFRESH_SECONDS, Channel
from dfx_agent.web.timeline import TimelineWindow, timeline_page
from dfx_agent.web.view import Look
from dfx_agent.web.visible_ranks import MAX_WHOLE_JOB, NUM_OF_LARGE_JOB

JOB = Path(__file__).resolve().parents[1] / "tests" / "integration" / "scripted_job.py"
STRAGGLER, STEP_SECONDS = "3", 5
RANKS = (8, 64, 1024)
KIB_PER_SECOND, PERCENT_OF_A_CORE, TIMELINE_KIB = 200.0, 20.0, 1024.0
NOTE = f"a step every {STEP_SECONDS} s"


def measure(*, quick: bool) -> list[Result]:
    rows: list[Result] = []
    for num_ranks in RANKS[:1] if quick else RANKS:
        rows += _measure(num_ranks, settle_seconds=1 if quick else 30, num_looks=3 if quick else 40)
    return rows


def _measure(num_ranks: int, settle_seconds: float, num_looks: int) -> list[Result]:
    with _job(num_ranks) as folder:
        agent = Agent(Config(folder), reap=False)
        until = time.monotonic() + settle_seconds
        while time.monotonic() < until:
            agent.poll()
            time.sleep(REFRESH_SECONDS)
        kib, percent = _whole(agent)
        looks = _Looks(agent)
        for _ in range(num_looks if num_ranks < RANKS[-1] else num_looks // 4):
            looks.take()
        timeline = _timeline_bytes(agent)
    what = f"page of {num_ranks:,} ranks"
    return [
        of_samples(f"{what}, first view", [looks.first_kib], "KiB", note=NOTE),
        of_samples(
            f"{what}, stream", looks.kib_per_second, "KiB/s",
            baseline=kib, bar=Bar(KIB_PER_SECOND), note=NOTE,
        ),
        of_samples(
            f"{what}, processor time", looks.percent, "% of a core",
            baseline=percent, bar=Bar(PERCENT_OF_A_CORE), note=NOTE,
        ),
        of_samples(f"{what}, a view every", looks.seconds, "s", note=NOTE),
        of_samples(
            f"{what}, timeline of what is shown", [timeline[0] / 1024], "KiB",
            baseline=Baseline("all ranks in one answer", timeline[1] / 1024),
            bar=Bar(TIMELINE_KIB), note="9 steps",
        ),
    ]  # fmt: skip


class _Looks:
    """Looks at the pace of the stream, each after a reading."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._channel = Channel(agent, Look())
        agent.poll()
        self._begin, self._pause = time.monotonic(), self._look()
        self.first_kib = len(self._channel.latest.whole) / 1024
        self.kib_per_second: list[float] = []
        self.percent: list[float] = []
        self.seconds: list[float] = []

    def take(self) -> None:
        time.sleep(max(0.0, self._begin + self._pause - time.monotonic()))
        self._agent.poll()
        now = time.monotonic()
        elapsed, self._begin = now - self._begin, now
        busy = self._channel.look()
        self._pause = max(REFRESH_SECONDS, busy / MAX_SHARE)
        self.kib_per_second.append(len(self._channel.latest.patch) / 1024 / elapsed)
        self.percent.append(100 * busy / max(elapsed, self._pause))
        self.seconds.append(self._pause)

    def _look(self) -> float:
        return max(REFRESH_SECONDS, self._channel.look() / MAX_SHARE)


def _whole(agent: Agent) -> tuple[Baseline, Baseline]:
    """Bytes and processor time of whole snapshots, as often as they were sent."""
    encode = Document[Snapshot](Snapshot).dumped
    encode(agent.snapshot())
    kib, percent = [], []
    for _ in range(5):
        agent.poll()
        begin = time.thread_time()
        num_bytes = len(encode(agent.snapshot()))
        seconds = time.thread_time() - begin
        rate = min(1 / REFRESH_SECONDS, 1 / seconds)
        kib.append(rate * num_bytes / 1024)
        percent.append(100 * rate * seconds)
    name = "whole snapshots"
    return median_of(name, kib), median_of(name, percent)


def _timeline_bytes(agent: Agent) -> tuple[int, int]:
    """(of the ranks that a page shows, of all); JSON, before it is packed."""
    keys = [(rank.role, rank.rank) for rank in agent.snapshot().runs[0].ranks]
    shown = keys if len(keys) <= MAX_WHOLE_JOB else keys[:NUM_OF_LARGE_JOB]
    page, _ = timeline_page(agent, "scripted", TimelineWindow(9, shown))
    num_bytes, after = 0, None
    while True:
        body, after = timeline_page(agent, "scripted", TimelineWindow(9, keys, after=after))
        num_bytes += len(body)
        if after is None:
            return len(page), num_bytes


@contextmanager
def _job(num_ranks: int) -> Iterator[str]:
    """The folder that it writes in."""
    command = [sys.executable, str(JOB), str(num_ranks), STRAGGLER, str(STEP_SECONDS)]
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        env = {**os.environ, "DFX_DIR": folder}
        with running(command, env=env, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None
            job.stdout.readline()
            yield folder


if __name__ == "__main__":
    report(measure)
