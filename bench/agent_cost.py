"""Memory and processor time of a real agent beside 8 ranks that write 1,000 records/s each.

Windows with nobody looking alternate with windows in which Prometheus scrapes every 5 s and one
page listens. The baseline is an agent over an empty folder in the same windows.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack

from bench.measurement import Bar, Baseline, Result, median_of, of_samples, report
from bench.served_agent import (
    SCRAPE_HEADERS,
    ServedAgent,
    get,
    listening,
    repeating,
    running,
    serving,
)

NUM_RANKS = 8
RECORDS_PER_SECOND = 1000
SCRAPE_SECONDS = 5.0
YOUNG_SECONDS = 12.0  # processes are read more often before
HISTORY_STEPS = 5000  # as many points as the agent keeps of one key
WRITER = [sys.executable, "-m", "bench.writer"]


def measure(*, quick: bool) -> list[Result]:
    with serving() as agent, serving() as idle, ExitStack() as writers:
        for rank in range(NUM_RANKS):
            writers.enter_context(running(_writer(agent, rank)))
        time.sleep(2.0 if quick else YOUNG_SECONDS)
        windows = _Windows(agent, idle, window_seconds=1.5 if quick else SCRAPE_SECONDS)
        quiet_mib = windows.measure_unwatched()
        for _ in range(1 if quick else 4):
            windows.measure_watched()
            windows.measure_unwatched()
        windows.measure_watched()
        rows = windows.rows(quiet_mib)
        full_mib = _resident_with_history(agent, 200 if quick else HISTORY_STEPS)
        note = f"after {HISTORY_STEPS:,} steps of 58 keys" if not quick else "after 200 steps"
        rows.append(_memory(f"agent memory, {note}", full_mib, idle.resident_mib(), Bar(80.0)))
    return rows


class _Windows:
    """Processor shares in percent of one core, of the agent and of the idle one."""

    def __init__(self, agent: ServedAgent, idle: ServedAgent, window_seconds: float) -> None:
        self._agent, self._idle = agent, idle
        self._window_seconds = window_seconds
        self._unwatched: list[float] = []
        self._watched: list[float] = []
        self._of_idle: list[float] = []

    def measure_unwatched(self) -> float:
        """Resident MiB of the agent at the end of the window."""
        self._unwatched.append(self._measure())
        return self._agent.resident_mib()

    def measure_watched(self) -> None:
        def scrape() -> None:
            get(self._agent.port, "/metrics", SCRAPE_HEADERS)

        with listening(self._agent.port, lambda *_: None), repeating(SCRAPE_SECONDS, scrape):
            self._watched.append(self._measure())

    def rows(self, quiet_mib: float) -> list[Result]:
        idle = median_of("agent without a job", self._of_idle)
        what = f"{NUM_RANKS} ranks x {RECORDS_PER_SECOND:,} records/s"
        unit, note = "% of a core", f"{what}, windows of {self._window_seconds:g} s"
        quiet = "agent processor time, nobody looks"
        looked_at = "agent processor time, 1 scrape per 5 s and 1 page"
        idle_mib = self._idle.resident_mib()
        return [
            of_samples(quiet, self._unwatched, unit, baseline=idle, bar=Bar(3.0), note=note),
            of_samples(looked_at, self._watched, unit, baseline=idle, note=note),
            _memory("agent memory, nobody looked", quiet_mib, idle_mib, Bar(80.0)),
            _memory("agent memory, looked at", self._agent.resident_mib(), idle_mib),
        ]

    def _measure(self) -> float:
        begin, before = time.monotonic(), self._agent.cpu_seconds()
        idle_before = self._idle.cpu_seconds()
        time.sleep(self._window_seconds)
        elapsed = time.monotonic() - begin
        self._of_idle.append(100 * (self._idle.cpu_seconds() - idle_before) / elapsed)
        return 100 * (self._agent.cpu_seconds() - before) / elapsed


def _writer(agent: ServedAgent, rank: int) -> list[str]:
    rate = ["--rate", str(RECORDS_PER_SECOND)]
    place = ["--rank", str(rank), "--world-size", str(NUM_RANKS)]
    return [*WRITER, agent.directory, *rate, *place]


def _resident_with_history(agent: ServedAgent, num_steps: int) -> float:
    """A run with a long past beside the other one, and a page that asked for all its curves."""
    command = [*WRITER, agent.directory, "--run", "long", "--history", str(num_steps)]
    with running([*command, "--rate", "100"], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(1.0)
        get(agent.port, "/api/v1/runs/long/scalars")
        return agent.resident_mib()


def _memory(name: str, mib: float, idle_mib: float, bar: Bar | None = None) -> Result:
    idle = Baseline("agent without a job", idle_mib)
    return Result(name, mib, "MiB", 1, {"p10": mib, "p90": mib}, idle, bar, "resident")


if __name__ == "__main__":
    report(measure)
