"""The ranks of one role at one instant: which ranks wait, and for which ranks.

On a loaded host the agent may read too rarely. Then a rank that looks blocked in two readings may
have moved in between, and its CPU time was not sampled often enough. In this case several readings
in a row must agree before a rank is blamed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from statistics import median

from dfx_agent.base.text import seconds_text
from dfx_agent.catalogue.alerts.declared.progress import LONG_WAIT
from dfx_agent.facts.rank import Arrival, RankFacts, Waiter
from dfx_agent.judge.hang import limits, sentences
from dfx_agent.judge.hang.limits import Excuse
from dfx_agent.judge.words import flight_lines, stack_lines
from dfx_agent.snapshot import Suspicion, Verdict, VerdictState

ENOUGH_READINGS = 3
_HELD_UP_SECONDS = 5.0  # usually the agent reads once per second
WAITING_SECONDS = 10.0

_DEFAULT_GROUP = "0"


class Role:
    """The ranks of one role, in order; at least one."""

    def __init__(
        self, name: str, ranks: Sequence[RankFacts], all_ranks: Sequence[RankFacts] = ()
    ) -> None:
        self.name = name
        self.ranks = ranks
        self.all_ranks = all_ranks or ranks  # of all roles
        self.now_ns = ranks[0].now_ns
        self.living = [rank for rank in ranks if rank.is_living]
        self._habits = limits.Habits(ranks)
        self._usual_seconds: dict[str, float] = {}

    @property
    def latest_ns(self) -> int:
        """Time of the latest fact. The end of a process may be noticed after the reading began."""
        return max(self.now_ns, *(rank.gone_ns or 0 for rank in self.ranks))

    def has_stood(self, labels: Collection[str]) -> bool:
        """Whether several readings in a row found these ranks (or all, if empty) unmoved."""
        ranks = [rank for rank in self.living if rank.label in labels or not labels]
        return all(rank.num_still >= ENOUGH_READINGS for rank in ranks)

    def has_ended_since(self, since_ns: int) -> bool:
        """Whether ranks have ended since then and the other ranks have not moved."""
        gone = any(rank.gone_ns is not None and rank.gone_ns > since_ns for rank in self.ranks)
        return gone and all(rank.moved_ns <= since_ns for rank in self.living)

    def waiters(self) -> list[Waiter]:
        """Ranks that have waited in a collective for at least 10 s."""
        before_ns = self.now_ns - int(WAITING_SECONDS * 1e9)
        return [
            Waiter(rank, arrival)
            for rank in self.living
            for arrival in rank.arrivals
            if arrival.begin_ns <= before_ns
        ]

    def in_same(self, waiters: Sequence[Waiter]) -> list[Waiter]:
        """``waiters``, and ranks that have called a collective with the same number since."""
        numbers = {(waiter.arrival.group, waiter.arrival.sequence) for waiter in waiters}
        callers = [
            Waiter(rank, arrival)
            for rank in self.living
            for arrival in rank.arrivals
            if (arrival.group, arrival.sequence) in numbers
        ]
        found = dict.fromkeys([*waiters, *callers])
        return sorted(found, key=lambda waiter: waiter.rank.rank)

    def device_waiters(self) -> list[Waiter]:
        """Quiet ranks that are ahead of others in a group: their device waits, not their host."""
        quiet = [
            rank
            for rank in self.living
            if rank.quiet_seconds >= WAITING_SECONDS and not rank.arrivals
        ]
        waiters: list[Waiter] = []
        for group, highest in self._uneven({group for rank in quiet for group in rank.reached}):
            ahead = [rank for rank in quiet if rank.reached.get(group) == highest]
            arrivals = (Arrival("", group, highest, rank.moved_ns) for rank in ahead)
            waiters += map(Waiter, ahead, arrivals)
        return waiters

    def _uneven(self, groups: Collection[str]) -> list[tuple[str, int]]:
        """(group, highest sequence number) for groups in which a rank is behind."""
        highest: dict[str, int] = {}
        lowest: dict[str, int] = {}
        for rank in self.living if groups else ():
            for group, number in rank.reached.items():
                highest[group] = max(number, highest.get(group, number))
                lowest[group] = min(number, lowest.get(group, number))
        return [(group, highest[group]) for group in groups if lowest[group] < highest[group]]

    def absent(self, waiters: Iterable[Waiter]) -> list[RankFacts]:
        """Members of the waiters' groups that have not arrived."""
        # thousands of ranks may wait in one collective: check each collective once
        waiters_by_call: dict[tuple[object, ...], list[Waiter]] = {}
        for waiter in waiters:
            caller = waiter.rank if waiter.arrival.peer is not None else None
            key = *_without_begin(waiter.arrival), caller
            waiters_by_call.setdefault(key, []).append(waiter)
        found: dict[RankFacts, None] = {}
        for same in waiters_by_call.values():
            only = same[0].rank if len({waiter.rank for waiter in same}) == 1 else None
            for rank in self.members(*{waiter.arrival: None for waiter in same}):
                if rank is not only and not rank.has_arrived(same[0]):
                    found[rank] = None
        return list(found)

    def members(self, arrival: Arrival, *same: Arrival) -> Sequence[RankFacts]:
        """Members of the group of a collective. ``same``: arrivals of other ranks in it."""
        if arrival.peer is not None:
            return [rank for rank in self.ranks if rank.rank == arrival.peer]
        if arrival.group in {"", _DEFAULT_GROUP}:
            return self.ranks
        listed = self._recorded_members(frozenset({arrival, *same}))
        return [rank for rank in self.ranks if rank.rank in listed or arrival.group in rank.reached]

    def _recorded_members(self, arrivals: frozenset[Arrival]) -> set[int]:
        """Members that flight recorders of waiting ranks list, also those that never arrived."""
        waiting = (rank for rank in self.ranks if not arrivals.isdisjoint(rank.arrivals))
        names = {arrival.group for arrival in arrivals}
        listed = {  # thousands of ranks list the same members
            group.members
            for rank in waiting
            for key, group in (rank.flight.groups if rank.flight else {}).items()
            if key.name in names
        }
        return {member for members in listed for member in members or ()}

    def excuse(self, rank: RankFacts, waiters: Iterable[Waiter] = ()) -> Excuse:
        """Judge one rank. Progress in the groups that ``waiters`` wait in counts as a move."""
        groups = {waiter.arrival.group for waiter in waiters if waiter.rank is not rank}
        times_ns = [ns for group, ns in rank.group_moved_ns.items() if group in groups]
        moved_ns = min(self.now_ns, max(times_ns, default=0))
        moving = replace(rank, moved_ns=moved_ns) if moved_ns > rank.moved_ns else rank
        return limits.excuse(moving, self._habits)

    def age_seconds(self, waiters: Iterable[Waiter]) -> float:
        """How long the first of these ranks has waited."""
        return (self.now_ns - min(waiter.arrival.begin_ns for waiter in waiters)) / 1e9

    def usual_seconds(self, arrival: Arrival) -> float:
        """Five times the median duration of this kind of collective; 0 if unknown."""
        key = f"{arrival.operation}@{arrival.group}"
        if key not in self._usual_seconds:
            durations = [ns for rank in self.ranks for ns in rank.collective_durations.get(key, ())]
            self._usual_seconds[key] = 5 * median(durations) / 1e9 if durations else 0.0
        return self._usual_seconds[key]

    def num_unseen(self) -> int:
        """Number of ranks of the job that are not observed."""
        world_size = max(rank.world_size for rank in self.ranks)
        return max(0, world_size - len(self.ranks))

    def found(
        self, cause: str, summary: str, ranks: list[RankFacts], lines: list[str], since_ns: int
    ) -> Verdict:
        first = (ranks or self.living)[0]
        return Verdict(
            kind="hang",
            state="found",
            role=self.name,
            summary=summary,
            ranks=tuple(rank.label for rank in ranks),
            stage=first.stage,
            cause=cause,
            step=first.latest_step,
            since_seconds=first.epoch_seconds(since_ns),
            evidence=(
                *lines,
                *flight_lines(self.ranks),
                *stack_lines(self.ranks),
            ),
        )

    def verdict(self, state: VerdictState, summary: str, evidence: tuple[str, ...] = ()) -> Verdict:
        cause = LONG_WAIT if state == "insufficient evidence" else ""
        return Verdict("hang", state, self.name, summary, cause=cause, evidence=evidence)

    def suspicion(
        self,
        rank: RankFacts,
        seconds: float,
        limit_seconds: float,
        summary: str,
        evidence: tuple[str, ...],
    ) -> Verdict:
        """Not certain yet: ``rank`` has not moved for ``seconds`` of the ``limit_seconds``."""
        since_seconds = rank.epoch_seconds(self.now_ns - int(seconds * 1e9))
        verdict = self.verdict("insufficient evidence", summary, evidence)
        return replace(verdict, suspicion=Suspicion((rank.label,), since_seconds, limit_seconds))


def _without_begin(arrival: Arrival) -> tuple[str, str, int | None, int | None]:
    return arrival.operation, arrival.group, arrival.sequence, arrival.peer


class ReadingGaps:
    """The last gaps between readings, in seconds."""

    def __init__(self) -> None:
        self._last_reading: float | None = None
        self._gaps: deque[float] = deque(maxlen=ENOUGH_READINGS)

    def note(self, now: float) -> None:
        """Record that a reading ended at ``now`` (monotonic clock, seconds)."""
        if self._last_reading is not None:
            self._gaps.append(now - self._last_reading)
        self._last_reading = now

    def doubted(self, verdict: Verdict) -> Verdict:
        """The verdict if readings were on time, else "insufficient evidence"."""
        longest = max(self._gaps, default=0.0)
        if longest < _HELD_UP_SECONDS:
            return verdict
        summary = sentences.AGENT_WAS_HELD_UP(
            duration=seconds_text(longest), summary=verdict.summary
        )
        return replace(verdict, state="insufficient evidence", summary=summary, cause="", ranks=())
