"""Requests and stores allocator snapshots when a memory verdict is about a device.

The job must allow it (``DFX_MEMORY_SNAPSHOT=1``). At most two ranks of a finding write one snapshot
each. ``evidence/<run>-<time>-memory-<cause>-<role>-<rank>.pickle``; the latest 8 are retained.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import closing, suppress

from dfx_agent.agent.local_run import LocalRun
from dfx_agent.agent.stored.evidence import FOLDER
from dfx_agent.node.process import Process
from dfx_agent.node.segments.owned_files import open_state
from dfx_agent.snapshot import Verdict
from dfx_agent.wire.segment import SNAPSHOT_SUFFIX, SUFFIX, WANTED_SUFFIX

MAX_FILES = 8
_MOST_RANKS = 2
_MOST_LETTERS = 200  # a run may have a longer name than a file
_ALLOWED = "patch/memory_snapshot"
_ON_HOST = "host leak"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class AllocatorSnapshots:
    """Allocator snapshots of an agent. A failed request or write raises an error."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # process -> cause of the verdict -> name of the snapshot file; the latest is last
        self._asked: dict[Process, dict[str, str]] = {}

    def observe(self, fold: LocalRun) -> None:
        """After each reading of a run."""
        for verdict in fold.judge.memory:
            for process in self._wanted(fold, verdict):
                self._ask(fold, process, verdict)
        for process in [p for p in self._asked if p in fold.processes.values()]:
            if process.follower.sibling_status(SNAPSHOT_SUFFIX) is not None:
                self._keep(process)
        self._asked = {p: names for p, names in self._asked.items() if p.is_living}

    def _wanted(self, fold: LocalRun, verdict: Verdict) -> Iterable[Process]:
        if verdict.state != "found" or verdict.cause == _ON_HOST:
            return ()
        keys = ((verdict.role, label) for label in verdict.ranks[:_MOST_RANKS])
        named = [fold.processes[key] for key in keys if key in fold.processes]
        return [
            p for p in named if _ALLOWED in p.gauges and p.is_living and not self._knows(p, verdict)
        ]

    def _knows(self, process: Process, verdict: Verdict) -> bool:
        return verdict.cause in self._asked.get(process, {})

    def _ask(self, fold: LocalRun, process: Process, verdict: Verdict) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S")
        words = (fold.run, stamp, verdict.kind, verdict.cause, verdict.role, process.label)
        name = _UNSAFE.sub("_", "-".join(words))[-_MOST_LETTERS:] + ".pickle"
        self._asked.setdefault(process, {})[verdict.cause] = name
        folder = process.follower.folder
        if folder is not None and folder.is_own:
            with suppress(FileExistsError):
                folder.create(_sibling(process, WANTED_SUFFIX))

    def _keep(self, process: Process) -> None:
        folder, name = process.follower.folder, list(self._asked[process].values())[-1]
        if folder is None or not folder.is_own:
            return
        with closing(open_state(self._directory)) as state:
            evidence = state.own_folder(FOLDER)
        with closing(evidence):
            folder.hand_over(_sibling(process, SNAPSHOT_SUFFIX), evidence, name)
            for _, old in evidence.list_latest_first(".pickle")[MAX_FILES:]:
                evidence.remove(old)


def _sibling(process: Process, suffix: str) -> str:
    return os.path.basename(process.follower.path).removesuffix(SUFFIX) + suffix
