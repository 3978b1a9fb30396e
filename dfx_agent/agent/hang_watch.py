"""Processes of a run put before the judge of hangs and crashes, reading by reading."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain

from dfx_agent.judge.hang.judge import KINDS, HangJudge
from dfx_agent.node.process import Process
from dfx_agent.node.tracks import Tracks, facts_of
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.faults import Faults


class HangWatch:
    """All roles of one run; ``observe`` after each reading. ``verdicts`` are the newest."""

    def __init__(self, faults: Faults, run: str) -> None:
        self.verdicts: tuple[Verdict, ...] = ()
        self.now_ns = 0  # as of which they are, monotonic
        self.tracks = Tracks(faults, run)
        self._faults, self._run = faults, run
        self._judge = HangJudge(faults, run)

    def observe(
        self, processes: Mapping[tuple[str, str], Process], now_ns: int
    ) -> tuple[Verdict, ...]:
        """A hang and a crash verdict for every role. ``processes`` by (role, label)."""
        read_seconds = time.monotonic()
        self.now_ns = now_ns
        self.tracks.observe(processes, now_ns)
        roles, quiet_seconds = self.tracks.facts(now_ns), self.tracks.quiet_seconds(now_ns)
        known = {role: ranks for role, ranks in roles.items() if ranks is not None}
        judged = self._judge.verdicts(known, quiet_seconds, read_seconds)
        unknown = (self._unjudged(role) for role, ranks in roles.items() if ranks is None)
        self.verdicts = *judged, *chain.from_iterable(unknown)
        return self.verdicts

    def _unjudged(self, role: str) -> list[Verdict]:
        """Of a role without facts: none that goes on from them is clear."""
        judged, needs = self._faults.judged, facts_of(role)
        told = (judged(self._run, kind, role, lambda: None, needs) for kind in KINDS)
        return [verdict for verdict in told if verdict is not None]
