"""Stores what a run's detector has learned in a file, from which the next agent continues.

``signals/<run>-<hash>.json`` in the agent's own folder (``owned_files``), mode 0600, replaced in
one go; at most ``MAX_FILES`` of them, none older than ``KEEP_SECONDS``. An
unreadable file is reported once, and its baselines are learned again.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from typing import Any

from dfx_agent.job.judging import Learned, Signals
from dfx_agent.node.segments.owned_files import (
    MAX_BYTES,
    HeldFolder,
    open_existing,
    open_state,
    state_directory,
)
from dfx_agent.snapshot import SegmentProblem
from dfx_agent.snapshot.document import Document, reason
from dfx_agent.wire.segment import SegmentError

FOLDER = "signals"
MAX_FILES = 64
KEEP_SECONDS = 14 * 86400.0
EVERY_SECONDS = 5.0

_FORMAT = 3
_KNOWN_FORMATS = (2, _FORMAT)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class _Header:
    format: int


@dataclass(frozen=True)
class File:
    """The baselines of one run; ``run`` is for people, the file name identifies the run."""

    format: int
    run: str
    health: Learned


_HEADER = Document[_Header](_Header)
FILE = Document[File](File)


class HealthFiles:
    """The files of one agent. Nothing here raises."""

    def __init__(self, directory: str) -> None:
        self.problems: dict[str, SegmentProblem] = {}
        self._directory = directory
        self._path = f"{state_directory(directory)}/{FOLDER}"
        self._folder: HeldFolder | None = None
        self._written: dict[str, tuple[float, Any]] = {}  # run -> (when, the state it then had)

    def restore(self, run: str, health: Signals) -> Signals:
        """The state that an earlier agent stored for a run of this name, else ``health``."""
        name = _name(run)
        try:
            stored = self._read(name)
            if stored is None:
                return health
            restored = Signals(health.critical)
            restored.resume(stored)
        except Exception as error:  # noqa: BLE001 (the agent survives any content of the file)
            why = reason(error)[:80] or type(error).__name__
            path = f"{self._path}/{name}"
            message = f"cannot use the baselines in {path} ({why}): learning run {run} again"
            self.problems[run] = SegmentProblem(path, "signals", message)
            return health
        self._written[run] = time.monotonic(), restored.state
        return restored

    def keep(self, run: str, health: Signals, *, is_last: bool = False) -> None:
        """Write what is new, at most every ``EVERY_SECONDS``."""
        written, state = self._written.get(run, (0.0, None))
        now = time.monotonic()
        if health.state is state or (now - written < EVERY_SECONDS and state and not is_last):
            return
        self._written[run] = now, health.state
        document = File(_FORMAT, _printable(run), health.save())
        try:
            self._held().write(_name(run), FILE.dumped(document))
            if state is None:
                self._remove_old()
        except (OSError, ValueError, SegmentError) as error:
            message = f"cannot keep the baselines of run {run} in {self._path} ({error})"
            self.problems[run] = SegmentProblem(self._path, "signals", message)

    def forget(self, run: str) -> None:
        """The run is gone from this agent; its file stays for the next one."""
        self._written.pop(run, None)
        self.problems.pop(run, None)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _held(self) -> HeldFolder:
        if self._folder is None:
            state = open_state(self._directory)
            try:
                self._folder = state.own_folder(FOLDER)
            finally:
                state.close()
        return self._folder

    def _read(self, name: str) -> Learned | None:
        """None when there is none, or an old one; ValueError when it is not one of ours."""
        try:
            folder = self._folder or open_existing(self._path)
        except FileNotFoundError:
            return None
        try:
            return self._health(folder, name)
        finally:
            if folder is not self._folder:
                folder.close()

    @staticmethod
    def _health(folder: HeldFolder, name: str) -> Learned | None:
        status = folder.status(name)
        if status is None or time.time() - status.st_mtime > KEEP_SECONDS:
            return None
        if status.st_size > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES} bytes")
        data = folder.read(name)
        if _HEADER.read(data).format not in _KNOWN_FORMATS:
            raise ValueError("written by another version")
        return FILE.read(data).health

    def _remove_old(self) -> None:
        folder = self._held()
        for place, (seconds, name) in enumerate(folder.list_latest_first(".json")):
            if place >= MAX_FILES or time.time() - seconds > KEEP_SECONDS:
                folder.remove(name)


def _printable(run: str) -> str:
    """JSON is UTF-8; names of folders need not be."""
    return run.encode("utf-8", "replace").decode()


def _name(run: str) -> str:
    """Of a run's file; run names are the job's, and may hold anything."""
    digest = hashlib.sha256(run.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{_UNSAFE.sub('_', run)[:80]}-{digest}.json"
