"""Recent activity of all processes of one run, and the facts about ranks that a judge needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dfx_agent.facts.rank import RankFacts
from dfx_agent.node.process import Process
from dfx_agent.node.track import Ending, Track
from dfx_agent.snapshot.faults import Faults, facts_of


class Tracks:
    """Call ``observe`` after each poll; ``facts`` may be called at any time."""

    def __init__(self, faults: Faults, run: str) -> None:
        self.now_ns = 0  # monotonic time of the last ``observe``
        self._faults, self._run = faults, run
        self._tracks: dict[Process, Track] = {}
        self._roles: dict[str, list[Track]] = {}

    def __iter__(self) -> Iterator[Track]:
        return iter(self._tracks.values())

    def observe(self, processes: Mapping[tuple[str, str], Process], now_ns: int) -> None:
        """Update from the last poll. ``processes``: by (role, label)."""
        self.now_ns = now_ns
        present = set(processes.values())
        self._tracks = {
            process: track for process, track in self._tracks.items() if process in present
        }
        self._roles = {}
        for (role, _), process in processes.items():
            track = self._tracks.get(process)
            if track is None:
                track = self._tracks[process] = Track(process)
            with self._faults.guard("reading", self._run, f"what rank {process.label} has done"):
                track.observe(now_ns)
            self._roles.setdefault(role, []).append(track)

    def resume(self, process: Process, ending: Ending) -> None:
        """Restore how a process ended, as an earlier agent recorded it."""
        track = self._tracks.setdefault(process, Track(process))
        track.observe(ending.gone_ns)
        track.resume(ending)

    def is_suspended(self, process: Process) -> bool:
        """Whether the kernel reports the process as stopped (state T)."""
        track = self._tracks.get(process)
        return track is not None and track.is_suspended

    def quiet_seconds(self, now_ns: int) -> float:
        """Seconds since any process of the run made progress; 0 if none is alive."""
        living = [
            track.still_seconds(now_ns)
            for track in self._tracks.values()
            if track.process.is_living
        ]
        return min(living, default=0.0)

    def has_stalled_process(self, now_ns: int, for_ns: int) -> bool:
        """Whether a live process has made no progress, or waited for peers, for ``for_ns``."""
        since_ns = now_ns - for_ns
        return any(
            track.moved_ns <= since_ns
            or any(arrival.begin_ns <= since_ns for arrival in track.arrivals)
            for process, track in self._tracks.items()
            if process.is_living
        )

    def facts(self, now_ns: int, *, is_exact: bool = True) -> dict[str, tuple[RankFacts, ...]]:
        """Role -> its ranks, sorted; without a role if reading one of its ranks failed.

        The ranks that wait for the unreadable rank are unknown too. ``is_exact``: all facts are
        those at ``now_ns``. Otherwise a role that no judge must check may have earlier facts of
        ranks that have recorded nothing since then.
        """
        facts_by_role: dict[str, tuple[RankFacts, ...]] = {}
        for role, tracks in self._roles.items():
            with self._faults.guard("judgement", self._run, facts_of(role)):
                facts_by_role[role] = self._ranks(tracks, now_ns, is_exact=is_exact)
        return facts_by_role

    def _ranks(self, tracks: list[Track], now_ns: int, *, is_exact: bool) -> tuple[RankFacts, ...]:
        # stacks and states are read only if a judge needs to check
        looks_closer = any(track.needs_check(now_ns) for track in tracks)
        if not looks_closer and not is_exact:
            return _sorted(track.latest_facts(now_ns) for track in tracks)
        attempt = max(track.process.attempt for track in tracks)
        # processes that an earlier attempt left behind do not belong to this attempt
        current = [
            track for track in tracks if track.process.is_living or track.process.attempt == attempt
        ]
        for track in current:
            if track.gone_ns is not None and track.is_outlived is None:
                # a rank that is still alive now has outlived this one
                alive = [
                    peer
                    for peer in current
                    if peer is not track and peer.process.is_alive_or_exiting()
                ]
                track.is_outlived = bool(alive)
        return _sorted(track.facts(now_ns, looks_closer=looks_closer) for track in current)


def _sorted(ranks: Iterable[RankFacts]) -> tuple[RankFacts, ...]:
    return tuple(sorted(ranks, key=lambda rank: (len(rank.label), rank.label)))
