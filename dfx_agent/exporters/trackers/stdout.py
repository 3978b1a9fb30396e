"""Steps as lines on stdout, in the form of verl's console logger."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dfx_agent.exporters.trackers.tracker import Options, Tracker, checked_options


def open_tracker(options: Options) -> Tracker:
    """No options."""
    checked_options("stdout", options, frozenset())
    return StdoutRun


class StdoutRun:
    """Writes ``run NAME step:3 - actor/pg_loss:0.25 - ...``; all runs share stdout."""

    def __init__(self, run: str) -> None:
        self._run = run

    def write(self, step: int, time_seconds: float, metrics: Mapping[str, float]) -> None:  # noqa: ARG002 (a line on a terminal is of now)
        parts = [f"run {self._run} step:{step}", *(f"{k}:{v:.6g}" for k, v in metrics.items())]
        sys.stdout.write(" - ".join(parts) + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Stdout stays open."""
