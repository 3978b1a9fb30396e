"""Totals of the processes of a folder, and how far each was read: for the next agent.

Without them it counts from the oldest record that is left in a ring: counters go back, and what its
predecessor had read is called lost. One file in the agent's own folder, of those that live; a
process is told by boot, namespace, pid, start time and the birth of its segment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from dfx_agent.node.process import Process
from dfx_agent.node.segments.owned_files import open_existing, open_state, state_directory
from dfx_agent.node.time.totals import KeptTotals, Totals
from dfx_agent.snapshot import SegmentProblem
from dfx_agent.wire import SegmentError
from dfx_agent.wire.segment import Preamble

NAME = "totals.json"
EVERY_SECONDS = 5.0
_FORMAT = 1
_MAX_BYTES = 64 << 20
_UNKEPT_SHARE = 1 / 4  # of a ring


class TotalsFile:
    """Of one agent. Nothing here raises; what cannot be read or kept is a problem."""

    def __init__(self, directory: str) -> None:
        self.problem: SegmentProblem | None = None
        self._directory = directory
        self._path = f"{state_directory(directory)}/{NAME}"
        self._kept_seconds = time.monotonic()
        self._positions: dict[Process, int] = {}  # as they were kept
        self._kept = self._read()

    def of(self, process: Process) -> KeptTotals | None:
        """What an earlier agent knew of this very process."""
        entry = self._kept.pop(key_of(process.follower.preamble), None)
        if entry is None:
            return None
        try:
            position, until_ns = int(entry["position"]), int(entry["until_ns"])
            return KeptTotals(position, until_ns, Totals.load(entry["totals"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._note("use", error)
            return None

    def keep(self, processes: Iterable[Process], *, is_last: bool = False) -> None:
        """Write those of ``processes`` that live, every ``EVERY_SECONDS``.

        Sooner where what came since then fills much of a ring: what an agent that is killed has not
        kept is still there for the next one.
        """
        now, living = time.monotonic(), [p for p in processes if p.is_living]
        is_due = is_last or now - self._kept_seconds >= EVERY_SECONDS
        if not is_due and not any(map(self._is_far, living)):
            return
        self._kept_seconds = now
        self._positions = {p: p.follower.position for p in living}
        rows = {key_of(p.follower.preamble): p.to_keep() for p in living}
        entries = {
            key: {"position": k.position, "until_ns": k.until_ns, "totals": k.totals.dump()}
            for key, k in rows.items()
            if k is not None
        }
        try:
            data = json.dumps({"format": _FORMAT, "processes": entries}).encode()
            with closing(open_state(self._directory)) as folder:
                folder.write(NAME, data)
        except (OSError, ValueError, SegmentError) as error:
            self._note("keep", error)

    def _is_far(self, process: Process) -> bool:
        follower = process.follower
        num_new = follower.position - self._positions.get(process, 0)
        return num_new > _UNKEPT_SHARE * follower.preamble.num_records

    def _read(self) -> dict[str, Any]:
        try:
            with closing(open_existing(state_directory(self._directory))) as folder:
                return _processes(json.loads(folder.read(NAME, _MAX_BYTES)))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._note("use", error)
            return {}

    def _note(self, verb: str, error: Exception) -> None:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        message = f"cannot {verb} the totals in {self._path} ({reason}): counters may go back"
        self.problem = SegmentProblem(self._path, "totals", message)


def _processes(document: Any) -> dict[str, Any]:
    if document["format"] != _FORMAT:
        raise ValueError(f"format {document['format']}, known is {_FORMAT}")
    return dict(document["processes"])


def key_of(preamble: Preamble) -> str:
    """Tells a process from every other, on any machine that this folder was on."""
    parts = preamble.pid_namespace, preamble.pid, preamble.start_ticks, preamble.created_epoch_ns
    return f"{preamble.boot_id.hex()}:{':'.join(map(str, parts))}"
