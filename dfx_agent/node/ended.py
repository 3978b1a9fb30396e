"""Decides which exited processes of a run stay in memory, and counts the ones that are dropped.

A long run may start any number of short-lived processes, and each costs 50 to 110 KiB. Of a dropped
process only the totals are stored, for a while: the next attempt of the rank continues them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from dfx_agent.base.bounded_dict import BoundedDict
from dfx_agent.node.process import Process
from dfx_agent.node.time.totals import Totals
from dfx_agent.snapshot import DroppedRanks

KEEP_PROCESSES = 64
# ranks within the job's world size, on one node: verdicts are about these
KEEP_RANKS = 256
KEEP_RUNS = 32


class DroppedProcesses:
    """Counters of the processes of one run that were dropped."""

    def __init__(self) -> None:
        self.attempt = 0
        self.begin_seconds = math.inf
        self.framework = ""
        self._num: Counter[str] = Counter()  # by role; it only grows
        self._num_records: Counter[str] = Counter()
        self._num_lost: Counter[str] = Counter()
        self._totals: BoundedDict[tuple[str, str], tuple[int, Totals]] = BoundedDict()

    def add(self, process: Process) -> None:
        role, totals, follower = process.registered_as.role, process.totals(), process.follower
        self.attempt = max(self.attempt, process.attempt)
        self.begin_seconds = min(self.begin_seconds, follower.preamble.created_epoch_ns / 1e9)
        self.framework = self.framework or follower.identity.framework
        self._num[role] += 1
        self._num_records[role] += totals.num_records
        self._num_lost[role] += totals.num_lost
        self._totals.put((role, process.label), (process.attempt, totals))

    def restore(self, process: Process) -> None:
        """Continue the totals of a dropped process in its successor, if there was one."""
        role = process.registered_as.role
        stored = self._totals.pop((role, process.label))
        if stored is not None:
            attempt, totals = stored
            self._num_records[role] -= totals.num_records
            self._num_lost[role] -= totals.num_lost
            process.continue_from(attempt, totals)

    def rows(self) -> tuple[DroppedRanks, ...]:
        return tuple(
            DroppedRanks(role, num, self._num_records[role], self._num_lost[role])
            for role, num in self._num.items()
        )


def surplus(processes: Iterable[Process]) -> list[Process]:
    """Processes to drop: per kind, all exited processes but the last to exit.

    Normal exits do not displace crashes, and helper processes do not displace ranks.
    """
    kinds: dict[tuple[str, bool], list[Process]] = {}
    for process in processes:
        if not process.is_living:
            kinds.setdefault((process.state, _is_of_world(process)), []).append(process)
    dropped: list[Process] = []
    for (_, is_of_world), ended in kinds.items():
        num_retained = KEEP_RANKS if is_of_world else KEEP_PROCESSES
        if len(ended) > num_retained:
            dropped += sorted(ended, key=_last_ns)[:-num_retained]
    return dropped


def _is_of_world(process: Process) -> bool:
    identity = process.follower.identity
    return 0 <= identity.rank < identity.world_size and process.label == str(identity.rank)


def _last_ns(process: Process) -> int:
    return process.last_event_ns or process.follower.begin_ns
