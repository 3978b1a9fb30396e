"""What one open page costs an agent of 8, 64 and 1,024 ranks: bytes, and processor time.

The job is the scripted one of the tests, a step every 5 s. Windows with a page and windows with
nobody looking alternate; the baseline is the agent in the latter. A page reads its stream, and
nothing else: what it asks for beside that (the timeline) is measured by the answer.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measurement import Bar, Result, median_of, of_samples, report
from bench.served_agent import REQUEST_SECONDS, ServedAgent, get, running, serving

JOB = Path(__file__).resolve().parents[1] / "tests" / "integration" / "scripted_job.py"
STRAGGLER, STEP_SECONDS = "3", 5
SETTLE_SECONDS = 30.0
# ranks -> seconds of a window: views of a large job come seldom
WINDOWS = {8: 10.0, 64: 10.0, 1024: 30.0}
KIB_PER_SECOND, PERCENT_OF_A_CORE, TIMELINE_KIB = 200.0, 20.0, 1024.0


def measure(*, quick: bool) -> list[Result]:
    rows: list[Result] = []
    for num_ranks, seconds in ({8: 1.0} if quick else WINDOWS).items():
        rows += _measure(num_ranks, seconds, num_windows=1 if quick else 4, quick=quick)
    return rows


def _measure(num_ranks: int, seconds: float, num_windows: int, *, quick: bool) -> list[Result]:
    watched, alone, kib = [], [], []
    with serving() as agent, _job(agent, num_ranks):
        time.sleep(1.0 if quick else SETTLE_SECONDS)
        for _ in range(num_windows):
            alone.append(_cpu_percent(agent, seconds))
            with _page(agent.port) as page:
                before = page.num_bytes
                watched.append(_cpu_percent(agent, seconds))
                kib.append((page.num_bytes - before) / seconds / 1024)
        timeline, _ = get(agent.port, "/api/v1/runs/scripted/timeline?steps=9")
    what = f"{num_ranks:,} ranks"
    without = median_of("nobody looks", alone)
    added = [with_page - quiet for with_page, quiet in zip(watched, alone, strict=True)]
    note = f"a step every {STEP_SECONDS} s, windows of {seconds:g} s"
    return [
        of_samples(f"page of {what}, stream", kib, "KiB/s", bar=Bar(KIB_PER_SECOND), note=note),
        of_samples(
            f"page of {what}, processor time it adds", added, "% of a core",
            baseline=without, bar=Bar(PERCENT_OF_A_CORE), note=note,
        ),
        of_samples(
            f"page of {what}, timeline of 9 steps", [len(timeline) / 1024], "KiB",
            bar=Bar(TIMELINE_KIB),
        ),
    ]  # fmt: skip


@contextmanager
def _job(agent: ServedAgent, num_ranks: int) -> Iterator[None]:
    command = [sys.executable, str(JOB), str(num_ranks), STRAGGLER, str(STEP_SECONDS)]
    env = {**os.environ, "DFX_DIR": agent.directory}
    with running(command, env=env, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        job.stdout.readline()
        yield


class _Page(threading.Thread):
    """Reads a stream and throws it away."""

    def __init__(self, port: int) -> None:
        super().__init__(name="bench-page", daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
        self._connection.request("GET", "/api/v1/stream")
        self._answer = self._connection.getresponse()
        self._is_over = threading.Event()
        self.has_begun = threading.Event()
        self.num_bytes = 0

    def run(self) -> None:
        num_events = 0
        while not self._is_over.is_set():
            chunk = self._answer.read1(1 << 16)
            self.num_bytes += len(chunk)
            num_events += chunk.count(b"\n\n")
            if num_events > 1:  # the first one says how to come back
                self.has_begun.set()

    def close(self) -> None:
        self._is_over.set()
        self.join(REQUEST_SECONDS)
        self._connection.close()


@contextmanager
def _page(port: int) -> Iterator[_Page]:
    """One that has its first view, which is whole."""
    page = _Page(port)
    page.start()
    page.has_begun.wait(REQUEST_SECONDS)
    try:
        yield page
    finally:
        page.close()


def _cpu_percent(agent: ServedAgent, seconds: float) -> float:
    begin, before = time.monotonic(), agent.cpu_seconds()
    time.sleep(seconds)
    return 100 * (agent.cpu_seconds() - before) / (time.monotonic() - begin)


if __name__ == "__main__":
    report(measure)
