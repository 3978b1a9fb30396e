"""Steps as lines on stdout, in the form of verl's console logger."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dfx_agent.exporters.trackers.tracker import Options, checked_options


def open_tracker(options: Options) -> Stdout:
    """No options."""
    checked_options("stdout", options, frozenset())
    return Stdout()


class Stdout:
    """Shared by all runs; each line names its run."""

    def begin(self, run: str) -> StdoutRun:
        return StdoutRun(run)


class StdoutRun:
    """Writes ``run NAME step:3 - actor/pg_loss:0.25 - ...``."""

    def __init__(self, run: str) -> None:
        self._run = run

    def write(self, step: int, time_seconds: float, metrics: Mapping[str, float]) -> None:  # noqa: ARG002 (a line on a terminal is of now)
        parts = [f"run {self._run} step:{step}", *(f"{k}:{v:.6g}" for k, v in metrics.items())]
        sys.stdout.write(" - ".join(parts) + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Stdout stays open."""
