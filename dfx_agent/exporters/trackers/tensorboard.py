"""Steps as TensorBoard event files, one folder per run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfx_agent.exporters.trackers.tracker import (
    Options,
    Tracker,
    checked_options,
    file_name,
    folder,
    library,
)

_LOG_DIR = "runs"


def open_tracker(options: Options) -> Tracker:
    """Options: ``log_dir`` (runs). tensorboardX needs neither TensorBoard nor torch."""
    given = checked_options("tensorboard", options, frozenset({"log_dir"}))
    parts = ("event_file_writer", "proto.event_pb2", "proto.summary_pb2")
    writer, event, summary = (library("tensorboard", f"tensorboardX.{part}") for part in parts)
    classes = _Classes(writer.EventsWriter, event.Event, summary.Summary)
    log_dir = folder("tensorboard", given.get("log_dir", _LOG_DIR))
    return lambda run: TensorBoardRun(log_dir / file_name(run), classes)


@dataclass(frozen=True)
class _Classes:
    """Uses tensorboardX's EventsWriter; SummaryWriter's thread dies on a full disk."""

    writer: Any
    event: Any
    summary: Any


class TensorBoardRun:
    """Writes one event per step to ``<log_dir>/<run>/events.out.tfevents.*``, flushed to disk."""

    def __init__(self, log_dir: Path, classes: _Classes) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self._classes = classes
        self._events = classes.writer(str(log_dir / "events"), f".{os.getpid()}.dfx")

    def write(self, step: int, time_seconds: float, metrics: Mapping[str, float]) -> None:
        summary = self._classes.summary(
            value=[self._classes.summary.Value(tag=k, simple_value=v) for k, v in metrics.items()]
        )
        event = self._classes.event(wall_time=time_seconds, step=step, summary=summary)
        self._events.write_event(event)
        self._events.flush()

    def close(self) -> None:
        self._events.close()
