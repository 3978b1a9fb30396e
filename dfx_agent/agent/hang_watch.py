"""Processes of a run put before the judge of hangs and crashes, reading by reading."""

from __future__ import annotations

import time
from collections.abc import Mapping

from dfx_agent.faults import Faults
from dfx_agent.judge.hang.judge import HangJudge
from dfx_agent.node.process import Process
from dfx_agent.node.tracks import Tracks
from dfx_agent.snapshot import Verdict


class HangWatch:
    """All roles of one run; ``observe`` after each reading. ``verdicts`` are the newest."""

    def __init__(self, faults: Faults | None = None, run: str = "") -> None:
        self.verdicts: tuple[Verdict, ...] = ()
        self.tracks = Tracks(faults or Faults(), run)
        self._judge = HangJudge(faults or Faults(), run)

    def observe(
        self, processes: Mapping[tuple[str, str], Process], now_ns: int
    ) -> tuple[Verdict, ...]:
        """A hang and a crash verdict for every role. ``processes`` by (role, label)."""
        read_seconds = time.monotonic()
        self.tracks.observe(processes, now_ns)
        roles, quiet_seconds = self.tracks.facts(now_ns), self.tracks.quiet_seconds(now_ns)
        self.verdicts = self._judge.verdicts(roles, quiet_seconds, read_seconds)
        return self.verdicts
