"""What a run's detector has learned, as a file that the next agent goes on from.

``<DFX_DIR>/signals/<run>-<hash>.json``, mode 0600, replaced in one go; at most ``MAX_FILES`` of
them, none older than ``KEEP_SECONDS``. What cannot be read is said once, and learned anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dfx_agent.agent.health import RunHealth
from dfx_agent.snapshot import SegmentProblem
from dfx_agent.wire.segment import SegmentError, prepare_directory

FOLDER = "signals"
MAX_FILES = 64
KEEP_SECONDS = 14 * 86400.0
EVERY_SECONDS = 5.0

_FORMAT = 1
_MAX_BYTES = 4 << 20
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class HealthFiles:
    """The files of one agent. Nothing here raises."""

    def __init__(self, directory: str) -> None:
        self.problems: dict[str, SegmentProblem] = {}
        self._folder = Path(directory, FOLDER)
        self._written: dict[str, tuple[float, Any]] = {}  # run -> (when, the state it then had)

    def restore(self, run: str, health: RunHealth) -> RunHealth:
        """``health``, or what an earlier agent kept for a run of this name."""
        path = self._path(run)
        try:
            known = _read(path)
            if known is None or time.time() - path.stat().st_mtime > KEEP_SECONDS:
                return health
            restored = RunHealth(health.critical)
            restored.load(known)
        except Exception as error:  # noqa: BLE001 (whatever is in the file, the agent goes on)
            reason = " ".join(str(error).split())[:80] or type(error).__name__
            message = f"cannot use the baselines in {path} ({reason}): learning run {run} anew"
            self.problems[run] = SegmentProblem(str(path), "signals", message)
            return health
        self._written[run] = time.monotonic(), restored.state
        return restored

    def keep(self, run: str, health: RunHealth, *, is_last: bool = False) -> None:
        """Write what is new, at most every ``EVERY_SECONDS``."""
        written, state = self._written.get(run, (0.0, None))
        now = time.monotonic()
        if health.state is state or (now - written < EVERY_SECONDS and state and not is_last):
            return
        self._written[run] = now, health.state
        try:
            prepare_directory(str(self._folder))
            _write(self._path(run), {"format": _FORMAT, "run": run, "health": health.dump()})
            if state is None:
                self._remove_old()
        except (OSError, ValueError, SegmentError) as error:
            message = f"cannot keep the baselines of run {run} in {self._folder} ({error})"
            self.problems[run] = SegmentProblem(str(self._folder), "signals", message)

    def forget(self, run: str) -> None:
        """The run is gone from this agent; its file stays for the next one."""
        self._written.pop(run, None)
        self.problems.pop(run, None)

    def _path(self, run: str) -> Path:
        name = _UNSAFE.sub("_", run)[:80]
        digest = hashlib.sha256(run.encode()).hexdigest()[:12]
        return self._folder / f"{name}-{digest}.json"

    def _remove_old(self) -> None:
        aged = []
        for path in self._folder.glob("*.json"):
            with suppress(OSError):
                aged.append((path.stat().st_mtime, path))
        newest = sorted(aged, reverse=True)
        for place, (seconds, path) in enumerate(newest):
            if place >= MAX_FILES or time.time() - seconds > KEEP_SECONDS:
                path.unlink(missing_ok=True)


def _read(path: Path) -> Any:
    """The health part of a file; None when there is none. ValueError when it is not one of ours."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"larger than {_MAX_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if document["format"] != _FORMAT:
        raise ValueError(f"format {document['format']}, known is {_FORMAT}")
    return document["health"]


def _write(path: Path, document: dict[str, Any]) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file)
    unfinished.replace(path)
