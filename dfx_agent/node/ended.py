"""Ended processes of a run: the newest are kept, the others are counted.

A living run may have any number of short-lived processes, each of which costs 50 to 110 KiB. Of
those that are let go only the totals are kept, and not for ever: the next attempt of a rank goes
on counting from them.
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
# ranks of the world that the job tells, those on one node: verdicts are about them
KEEP_RANKS = 256
KEEP_RUNS = 32


class DroppedProcesses:
    """What is known of the processes of one run that were let go."""

    def __init__(self) -> None:
        self.attempt = 0
        self.begin_seconds = math.inf
        self.framework = ""
        self._num: Counter[str] = Counter()  # by role; it only grows
        self._num_records: Counter[str] = Counter()
        self._num_lost: Counter[str] = Counter()
        self._totals: BoundedDict[tuple[str, str], tuple[int, Totals]] = BoundedDict()

    def add(self, process: Process) -> None:
        role, totals, follower = process.filed_as.role, process.totals(), process.follower
        self.attempt = max(self.attempt, process.attempt)
        self.begin_seconds = min(self.begin_seconds, follower.preamble.created_epoch_ns / 1e9)
        self.framework = self.framework or follower.identity.framework
        self._num[role] += 1
        self._num_records[role] += totals.num_records
        self._num_lost[role] += totals.num_lost
        self._totals.put((role, process.label), (process.attempt, totals))

    def give_to(self, process: Process) -> None:
        """A process comes in the place of one of them: its totals are shown again, in its own."""
        role = process.filed_as.role
        known = self._totals.pop((role, process.label))
        if known is not None:
            attempt, totals = known
            self._num_records[role] -= totals.num_records
            self._num_lost[role] -= totals.num_lost
            process.go_on(attempt, totals)

    def rows(self) -> tuple[DroppedRanks, ...]:
        return tuple(
            DroppedRanks(role, num, self._num_records[role], self._num_lost[role])
            for role, num in self._num.items()
        )


def surplus(processes: Iterable[Process]) -> list[Process]:
    """Who is to be let go: ended, and longer ago than those that are kept of its kind.

    Orderly ends do not push out deaths, nor helpers the ranks: a crash stays to be seen.
    """
    kinds: dict[tuple[str, bool], list[Process]] = {}
    for process in processes:
        if not process.is_living:
            kinds.setdefault((process.state, _is_of_world(process)), []).append(process)
    found: list[Process] = []
    for (_, is_of_world), ended in kinds.items():
        num_kept = KEEP_RANKS if is_of_world else KEEP_PROCESSES
        if len(ended) > num_kept:
            found += sorted(ended, key=_newest_ns)[:-num_kept]
    return found


def _is_of_world(process: Process) -> bool:
    identity = process.follower.identity
    return 0 <= identity.rank < identity.world_size and process.label == str(identity.rank)


def _newest_ns(process: Process) -> int:
    return process.last_event_ns or process.follower.begin_ns
