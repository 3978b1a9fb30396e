"""How soon the agent names a slow rank, by how much it is off, and how soon it names a hung one.

A real torchrun job under a real agent: in turn each rank gets slower by a fifth of a step, then
ranks are stopped (SIGSTOP) in the middle of training. What counts is what a client of /api/v1 sees.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.disturbed_training import NUM_DELAYED, delayed_rank, first_delayed_step
from bench.measurement import Bar, Result, of_samples, report
from bench.rounds import TORCHRUN
from bench.served_agent import listening, running, serving

NUM_RANKS, QUICK_RANKS = 4, 2
SCRIPT = "bench.disturbed_training"
STEP_SECONDS = 5.0  # no step takes longer, on the busiest machine
HANG_SECONDS = 60.0
STEPS_BETWEEN_HANGS = 12

Snapshot = dict[str, Any]


class _Client:
    """The newest snapshot of the run, and a way to wait for one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._run: Snapshot = {"ranks": [], "verdicts": []}

    def take(self, _arrival: float, snapshot: Snapshot) -> None:
        with self._changed:
            self._run = next(iter(snapshot["runs"]), self._run)
            self._changed.notify_all()

    def wait_for(self, what: Callable[[Snapshot], Any], seconds: float) -> Any:
        """The first true answer of ``what(run)``; None when there is none in time."""
        with self._changed:
            return self._changed.wait_for(lambda: what(self._run), seconds) or None

    def wait_for_step(self, step: int) -> None:
        if self.wait_for(lambda run: _step(run) >= step, STEP_SECONDS * (step + 10)) is None:
            raise RuntimeError(f"the job did not reach step {step}")

    def step(self) -> int:
        return _step(self._run)

    def pid(self, rank: int) -> int:
        pids = {row["rank"]: row["pid"] for row in self._run["ranks"]}
        return int(pids[str(rank)])


def measure(*, quick: bool) -> list[Result]:
    num_ranks, num_stragglers, num_hangs = (
        (QUICK_RANKS, 1, 1) if quick else (NUM_RANKS, NUM_RANKS, 3)
    )
    client = _Client()
    with serving() as agent, tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        out = Path(folder, "delay.json")
        arguments = ["-m", SCRIPT, "--trials", str(num_stragglers), "--out", str(out)]
        env = {**os.environ, "DFX_DIR": agent.directory, "OMP_NUM_THREADS": "1"}
        with (
            running([*TORCHRUN, str(num_ranks), *arguments], env=env, stderr=subprocess.DEVNULL),
            listening(agent.port, client.take),
        ):
            stragglers = [
                _straggler(client, trial, num_stragglers, num_ranks)
                for trial in range(num_stragglers)
            ]
            delay_seconds = float(json.loads(out.read_text())["delay_seconds"])
            hangs = [_hang(client, number % num_ranks) for number in range(num_hangs)]
    return [*_straggler_rows(stragglers, delay_seconds, num_ranks), _hang_row(hangs)]


def _straggler(
    client: _Client, trial: int, num_trials: int, num_ranks: int
) -> tuple[int, float] | None:
    """(steps with the delay until it was named, seconds per step it is said to cost), or None."""
    first = first_delayed_step(trial)
    rank = delayed_rank(first, num_trials, num_ranks)
    client.wait_for_step(first)

    def answer(run: Snapshot) -> tuple[int, float] | str | None:
        if _step(run) >= first + NUM_DELAYED:
            return "too late"
        lost = [v["lost_seconds"] for v in _found(run, "straggler") if v["ranks"] == [str(rank)]]
        return (_step(run) - first, lost[0] or 0.0) if lost else None

    found = client.wait_for(answer, STEP_SECONDS * NUM_DELAYED)
    return found if isinstance(found, tuple) else None


def _hang(client: _Client, rank: int) -> float:
    """Seconds until the stopped rank is named; HANG_SECONDS when it is not."""
    client.wait_for_step(client.step() + STEPS_BETWEEN_HANGS)
    pid = client.pid(rank)
    begin = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        client.wait_for(
            lambda run: any(v["ranks"] == [str(rank)] for v in _found(run, "hang")), HANG_SECONDS
        )
        return time.monotonic() - begin
    finally:
        os.kill(pid, signal.SIGCONT)


def _step(run: Snapshot) -> int:
    """The newest step that any rank is in; 0 before the first."""
    return max((row["step"] or 0 for row in run["ranks"]), default=0)


def _found(run: Snapshot, kind: str) -> list[dict[str, Any]]:
    return [v for v in run["verdicts"] if v["kind"] == kind and v["state"] == "found"]


def _straggler_rows(
    found: list[tuple[int, float] | None], delay_seconds: float, num_ranks: int
) -> list[Result]:
    named = [item for item in found if item is not None]
    steps = [float(NUM_DELAYED if item is None else item[0]) for item in found]
    errors = [100 * abs(lost / delay_seconds - 1) for _, lost in named] or [100.0]
    note = (
        f"worst of the trials; right rank in {len(named)} of {len(found)}, "
        f"{delay_seconds * 1e3:.0f} ms added to a step, {num_ranks} ranks DDP"
    )
    return [
        of_samples("straggler named after", steps, "steps", q=1.0, bar=Bar(5.0), note=note),
        of_samples(
            "straggler amount, off by",
            errors,
            "% of the delay",
            bar=Bar(10.0),
            note=f"median of the first verdicts of {len(named)} trials",
        ),
    ]


def _hang_row(seconds: list[float]) -> Result:
    note = "worst of the trials; SIGSTOP of one rank until a client sees its name"
    return of_samples("hang named after", seconds, "s", q=1.0, bar=Bar(15.0), note=note)


if __name__ == "__main__":
    report(measure)
