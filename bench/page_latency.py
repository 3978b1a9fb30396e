"""From an event in the training process to the snapshot on the page that shows it.

The baseline is the same step becoming visible to a Prometheus that scrapes every 5 s.
"""

from __future__ import annotations

import random
import re
import threading
import time
from typing import Any

import dfx_agent.shim as dfx
from bench.measurement import Bar, Result, median_of, of_samples, report
from bench.served_agent import SCRAPE_HEADERS, get, listening, repeating, serving

SCRAPE_SECONDS = 5.0
SETTLE_SECONDS = 1.0
STEP_SAMPLE = re.compile(r"^dfx_step\{[^}]*\} (\d+)", re.MULTILINE)


class _Sightings:
    """When each step and each stage was first seen."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._changed = threading.Condition()
        self.steps: dict[int, float] = {}
        self.stages: dict[str, float] = {}
        self.scrapes: list[tuple[float, int]] = []

    def take(self, arrival: float, snapshot: dict[str, Any]) -> None:
        with self._changed:
            for rank in (rank for run in snapshot["runs"] for rank in run["ranks"]):
                if rank["step"] is not None:
                    self.steps.setdefault(rank["step"], arrival)
                for span in rank["inflight"]:
                    self.stages.setdefault(span["name"], arrival)
            self._changed.notify_all()

    def scrape(self) -> None:
        headers = {**SCRAPE_HEADERS, "Accept-Encoding": "identity"}
        body, _ = get(self._port, "/metrics", headers)
        found = STEP_SAMPLE.search(body.decode())
        if found:
            self.scrapes.append((time.monotonic(), int(found[1])))

    def wait_for_step(self, step: int) -> float:
        return self._wait(self.steps, step)

    def wait_for_stage(self, stage: str) -> float:
        return self._wait(self.stages, stage)

    def _wait(self, seen: dict[Any, float], what: Any) -> float:
        with self._changed:
            if not self._changed.wait_for(lambda: what in seen, timeout=10.0):
                raise RuntimeError(f"the page did not show {what!r} within 10 s")
            return seen[what]


def measure(*, quick: bool) -> list[Result]:
    num_events = 6 if quick else 60
    with serving() as agent:
        dfx.init(run="bench", rank=0, world_size=1, directory=agent.directory)
        dfx.set_step(0)
        time.sleep(SETTLE_SECONDS)
        sightings = _Sightings(agent.port)
        scraping = repeating(SCRAPE_SECONDS, sightings.scrape)
        with listening(agent.port, sightings.take), scraping:
            begun = [_one_event(sightings, number + 1) for number in range(num_events)]
            _wait_for_scrape(sightings, num_events)
        dfx.shutdown()
    return _rows(begun, sightings)


def _one_event(sightings: _Sightings, number: int) -> tuple[float, float]:
    """A step, seen, and a stage, seen: (begin of the step, begin of the stage)."""
    time.sleep(random.uniform(0.0, 0.5))  # no fixed phase against the agent's polls
    step_begin = time.monotonic()
    dfx.set_step(number)
    sightings.wait_for_step(number)
    time.sleep(random.uniform(0.0, 0.5))
    stage_begin = time.monotonic()
    with dfx.stage(f"stage_{number}"):
        sightings.wait_for_stage(f"stage_{number}")
    return step_begin, stage_begin


def _wait_for_scrape(sightings: _Sightings, step: int) -> None:
    deadline = time.monotonic() + 2 * SCRAPE_SECONDS
    while not any(seen >= step for _, seen in sightings.scrapes):
        if time.monotonic() > deadline:
            raise RuntimeError(f"/metrics did not show step {step} within 10 s")
        time.sleep(0.05)


def _rows(begun: list[tuple[float, float]], sightings: _Sightings) -> list[Result]:
    steps, stages, scraped = [], [], []
    for number, (step_begin, stage_begin) in enumerate(begun, start=1):
        steps.append(sightings.steps[number] - step_begin)
        stages.append(sightings.stages[f"stage_{number}"] - stage_begin)
        first = next(when for when, seen in sightings.scrapes if seen >= number)
        scraped.append(first - step_begin)
    scrape = median_of(f"scrape every {SCRAPE_SECONDS:g} s", scraped)
    rows = []
    for name, samples in (("set_step to page", steps), ("stage begin to page", stages)):
        for label, q in (("p50", 0.5), ("p95", 0.95)):
            rows.append(
                of_samples(f"{name}, {label}", samples, "s", q=q, baseline=scrape, bar=Bar(1.0))
            )
    return rows


if __name__ == "__main__":
    report(measure)
