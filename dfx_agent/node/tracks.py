"""All processes of one run over time, and the facts of those that a judge has to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dfx_agent.facts.rank import RankFacts
from dfx_agent.node.process import Process
from dfx_agent.node.track import Ending, Track
from dfx_agent.snapshot.faults import Faults, facts_of


class Tracks:
    """``observe`` after each reading; then ``facts``.

    ``now_ns``: as of which they were observed, monotonic.
    """

    def __init__(self, faults: Faults, run: str) -> None:
        self.now_ns = 0
        self._faults, self._run = faults, run
        self._tracks: dict[Process, Track] = {}
        self._roles: dict[str, list[Track]] = {}

    def __iter__(self) -> Iterator[Track]:
        return iter(self._tracks.values())

    def observe(self, processes: Mapping[tuple[str, str], Process], now_ns: int) -> None:
        """Take in what the last reading brought. ``processes`` by (role, label)."""
        self.now_ns = now_ns
        present = set(processes.values())
        self._tracks = {p: t for p, t in self._tracks.items() if p in present}
        self._roles = {}
        for (role, _), process in processes.items():
            track = self._tracks.get(process)
            if track is None:
                track = self._tracks[process] = Track(process)
            with self._faults.guard("reading", self._run, f"what rank {process.label} has done"):
                track.observe(now_ns)
            self._roles.setdefault(role, []).append(track)

    def resume(self, process: Process, ending: Ending) -> None:
        """How a process ended that an agent of before has seen end."""
        track = self._tracks.setdefault(process, Track(process))
        track.observe(ending.gone_ns)
        track.resume(ending)

    def is_suspended(self, process: Process) -> bool:
        """Whether the kernel says that it is stopped (state T)."""
        track = self._tracks.get(process)
        return track is not None and track.is_suspended

    def quiet_seconds(self, now_ns: int) -> float:
        """How long nothing has moved anywhere in the run."""
        living = [t.still_seconds(now_ns) for t in self._tracks.values() if t.process.is_living]
        return min(living, default=0.0)

    def anybody_stands(self, now_ns: int, for_ns: int) -> bool:
        """Whether a living process has been quiet, or has waited for its peers, for so long."""
        since_ns = now_ns - for_ns
        return any(
            track.moved_ns <= since_ns or any(a.begin_ns <= since_ns for a in track.arrivals)
            for process, track in self._tracks.items()
            if process.is_living
        )

    def facts(self, now_ns: int) -> dict[str, tuple[RankFacts, ...]]:
        """Role -> its ranks, in order; without a role one of whose ranks cannot be read.

        Who waits for that rank is not known either.
        """
        known: dict[str, tuple[RankFacts, ...]] = {}
        for role, tracks in self._roles.items():
            with self._faults.guard("judgement", self._run, facts_of(role)):
                known[role] = self._ranks(tracks, now_ns)
        return known

    def _ranks(self, tracks: list[Track], now_ns: int) -> tuple[RankFacts, ...]:
        # stacks and states are read only where a judge has to look
        looks_closer = any(track.may_stand(now_ns) for track in tracks)
        attempt = max(track.process.attempt for track in tracks)
        # what an earlier attempt left behind is not missed by this one
        known = [t for t in tracks if t.process.is_living or t.process.attempt == attempt]
        for track in known:
            if track.gone_ns is not None and track.is_outlived is None:
                # all are asked: who is still there now is known to have gone later
                there = [o for o in known if o is not track and o.process.is_there()]
                track.is_outlived = bool(there)
        ranks = [track.facts(now_ns, looks_closer=looks_closer) for track in known]
        return tuple(sorted(ranks, key=lambda rank: (len(rank.label), rank.label)))
