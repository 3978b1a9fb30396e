"""The ranks of one role at one instant: who waits for whom, and how a verdict on them is said.

A loaded host may keep this agent from reading as often as a verdict needs. Who stood at two
readings that lie far apart may have moved in between, and what decides whether it computes was not
looked at often enough. Then nobody is accused before several readings in a row have found the same.
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
_HELD_UP_SECONDS = 5.0  # a calm agent reads once a second
WAITING_SECONDS = 10.0

_DEFAULT_GROUP = "0"


class Role:
    """The ranks of one role, in order; at least one."""

    def __init__(
        self, name: str, ranks: Sequence[RankFacts], everybody: Sequence[RankFacts] = ()
    ) -> None:
        self.name = name
        self.ranks = ranks
        self.everybody = everybody or ranks  # of all roles of which something is known
        self.now_ns = ranks[0].now_ns
        self.living = [rank for rank in ranks if rank.is_living]
        self._habits = limits.Habits(ranks)
        self._usual_seconds: dict[str, float] = {}

    @property
    def newest_ns(self) -> int:
        """Of these facts: an end may have been looked for later than the reading began."""
        return max(self.now_ns, *(rank.gone_ns or 0 for rank in self.ranks))

    def has_stood(self, labels: Collection[str]) -> bool:
        """Whether several readings in a row found these ranks, or all, where they stand."""
        ranks = [rank for rank in self.living if rank.label in labels or not labels]
        return all(rank.num_still >= ENOUGH_READINGS for rank in ranks)

    def has_ended_since(self, since_ns: int) -> bool:
        """Whether ranks have gone since then and the others have not moved either."""
        gone = any(rank.gone_ns is not None and rank.gone_ns > since_ns for rank in self.ranks)
        return gone and all(rank.moved_ns <= since_ns for rank in self.living)

    def waiters(self) -> list[Waiter]:
        before_ns = self.now_ns - int(WAITING_SECONDS * 1e9)
        return [Waiter(r, a) for r in self.living for a in r.arrivals if a.begin_ns <= before_ns]

    def in_same(self, waiters: Sequence[Waiter]) -> list[Waiter]:
        """``waiters``, and ranks that called a collective with one of their numbers since then."""
        numbers = {(waiter.arrival.group, waiter.arrival.sequence) for waiter in waiters}
        callers = [
            Waiter(rank, arrival)
            for rank in self.living
            for arrival in rank.arrivals
            if (arrival.group, arrival.sequence) in numbers
        ]
        everybody = dict.fromkeys([*waiters, *callers])
        return sorted(everybody, key=lambda waiter: waiter.rank.rank)

    def silent_waiters(self) -> list[Waiter]:
        """Devices wait without the host: quiet ranks that are ahead of others in a group."""
        quiet = [r for r in self.living if r.quiet_seconds >= WAITING_SECONDS and not r.arrivals]
        waiters: list[Waiter] = []
        for group, newest in self._uneven({group for rank in quiet for group in rank.reached}):
            ahead = [rank for rank in quiet if rank.reached.get(group) == newest]
            arrivals = (Arrival("", group, newest, r.moved_ns) for r in ahead)
            waiters += map(Waiter, ahead, arrivals)
        return waiters

    def _uneven(self, groups: Collection[str]) -> list[tuple[str, int]]:
        """Those of ``groups`` in which somebody is behind, with the newest number of each."""
        newest: dict[str, int] = {}
        oldest: dict[str, int] = {}
        for rank in self.living if groups else ():
            for group, number in rank.reached.items():
                newest[group] = max(number, newest.get(group, number))
                oldest[group] = min(number, oldest.get(group, number))
        return [(g, newest[g]) for g in groups if oldest[g] < newest[g]]

    def absent(self, waiters: Iterable[Waiter]) -> list[RankFacts]:
        """Members of the waiters' groups that have not arrived."""
        alike: dict[tuple[object, ...], list[Waiter]] = {}
        for waiter in waiters:  # thousands of ranks wait in one collective: it is asked for once
            asks = waiter.rank if waiter.arrival.peer is not None else None
            alike.setdefault((*_without_begin(waiter.arrival), asks), []).append(waiter)
        found: dict[RankFacts, None] = {}
        for same in alike.values():
            only = same[0].rank if len({waiter.rank for waiter in same}) == 1 else None
            for rank in self.members(*{waiter.arrival: None for waiter in same}):
                if rank is not only and not rank.has_arrived(same[0]):
                    found[rank] = None
        return list(found)

    def members(self, arrival: Arrival, *same: Arrival) -> Sequence[RankFacts]:
        """``same``: of others, who wait for it too."""
        if arrival.peer is not None:
            return [rank for rank in self.ranks if rank.rank == arrival.peer]
        if arrival.group in {"", _DEFAULT_GROUP}:
            return self.ranks
        listed = self._recorded_members(frozenset({arrival, *same}))
        return [r for r in self.ranks if r.rank in listed or arrival.group in r.reached]

    def _recorded_members(self, arrivals: frozenset[Arrival]) -> set[int]:
        """As the flight recorder of who waits in it lists them, also those who never came yet."""
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
        """``waiters``: who wait, maybe for it; who goes on in their groups moves."""
        groups = {waiter.arrival.group for waiter in waiters if waiter.rank is not rank}
        times_ns = [ns for group, ns in rank.group_moved_ns.items() if group in groups]
        moved_ns = min(self.now_ns, max(times_ns, default=0))
        moving = replace(rank, moved_ns=moved_ns) if moved_ns > rank.moved_ns else rank
        return limits.excuse(moving, self._habits)

    def age_seconds(self, waiters: Iterable[Waiter]) -> float:
        return (self.now_ns - min(waiter.arrival.begin_ns for waiter in waiters)) / 1e9

    def usual_seconds(self, arrival: Arrival) -> float:
        """Five times what such a collective takes."""
        key = f"{arrival.operation}@{arrival.group}"
        if key not in self._usual_seconds:
            known = [ns for rank in self.ranks for ns in rank.collective_durations.get(key, ())]
            self._usual_seconds[key] = 5 * median(known) / 1e9 if known else 0.0
        return self._usual_seconds[key]

    def num_unseen(self) -> int:
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
            step=first.newest_step,
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
    """The newest gaps between readings, in seconds."""

    def __init__(self) -> None:
        self._newest: float | None = None
        self._gaps: deque[float] = deque(maxlen=ENOUGH_READINGS)

    def note(self, now: float) -> None:
        """A reading has ended at ``now`` of the monotonic clock."""
        if self._newest is not None:
            self._gaps.append(now - self._newest)
        self._newest = now

    def doubted(self, verdict: Verdict) -> Verdict:
        """The same where readings came in time, else that it is not sure yet."""
        longest = max(self._gaps, default=0.0)
        if longest < _HELD_UP_SECONDS:
            return verdict
        summary = sentences.AGENT_WAS_HELD_UP(
            duration=seconds_text(longest), summary=verdict.summary
        )
        return replace(verdict, state="insufficient evidence", summary=summary, cause="", ranks=())
