"""Steps as JSON lines, one file per run; ``dfx-agent backtest`` and ``watch`` can read them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from dfx_agent.exporters.trackers.tracker import (
    Options,
    Tracker,
    checked_options,
    file_name,
    folder,
)

_LOG_DIR = "dfx-metrics"


def open_tracker(options: Options) -> Tracker:
    """Options: ``log_dir`` (dfx-metrics)."""
    given = checked_options("jsonl", options, frozenset({"log_dir"}))
    log_dir = folder("jsonl", given.get("log_dir", _LOG_DIR))
    return lambda run: JsonLinesRun(log_dir / f"{file_name(run)}.jsonl", run)


class JsonLinesRun:
    """One line per step, flushed to disk before ``write`` returns; continues an existing file."""

    def __init__(self, path: Path, run: str) -> None:
        self._run = run
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, step: int, time_seconds: float, metrics: Mapping[str, float]) -> None:
        data = {key: _json(value) for key, value in metrics.items()}
        line = {"run": self._run, "step": step, "time": round(time_seconds, 3), "data": data}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()


def _json(value: float) -> float | str:
    """JSON has no NaN, so it becomes a text, as in the page's API."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
