"""Finds the rank that died first, and ranks that died only because of it.

The time of a death is known as an interval. It begins when the rank was last known to be alive (or
raised an exception), and ends when the process was found missing. If intervals overlap, the kind of
end decides: a kill comes before exceptions, because the loss of a peer raises exceptions. The time
at which a death was noticed says nothing about the order.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from dfx_agent.facts.rank import RankFacts
from dfx_agent.judge.crash.endings import OUT_OF_MEMORY, cause_of, has_raised, own_failure

_CLOCKS_NS = 500 * 10**6


def first_to_die(died: Sequence[RankFacts]) -> list[RankFacts]:
    """Ranks that may have died first. ``died`` must not be empty."""
    earliest = min(died, key=_missed_ns)
    together = [rank for rank in died if _alive_ns(rank) <= _missed_ns(earliest)]
    if len(together) == 1:
        return together
    for evidence in (_killed, _raised, _asked, _missing, _aborted):
        if found := evidence(together):
            return found
    return together


def was_ended_by_launcher(rank: RankFacts, died: Sequence[RankFacts]) -> bool:
    """Whether a launcher ended this rank because another rank had died before.

    A launcher sends SIGTERM to all ranks at once, and SIGKILL seconds later to those still running.
    Therefore a rank that died by SIGKILL was ended by the launcher only if it was alive after a
    peer had ended by SIGTERM.
    """
    status = rank.exit_status
    if status is None or cause_of(rank) == OUT_OF_MEMORY:
        return False
    if was_asked(rank):
        return any(_could_cause(other, rank) for other in died if not was_asked(other))
    ended_ns = [_missed_ns(other) for other in died if was_asked(other)]
    return status.signal == signal.SIGKILL and any(ns <= _alive_ns(rank) for ns in ended_ns)


def was_asked(rank: RankFacts) -> bool:
    """Whether the rank ended by SIGTERM or a similar signal, without an exception before."""
    return _terminated(rank) and not has_raised(rank)


def missed_groups(left: RankFacts, other: RankFacts) -> list[str]:
    """Common process groups in which ``other`` has reached a higher sequence number."""
    return [
        group
        for group, sequence in left.reached.items()
        if other.reached.get(group, sequence) > sequence
    ]


def _could_cause(other: RankFacts, rank: RankFacts) -> bool:
    """Whether a launcher may have ended ``rank`` because ``other`` had ended."""
    if _missed_ns(other) < _alive_ns(rank):
        return True
    ended_after_ns = max(other.there_ns or 0, _alive_ns(other))
    return ended_after_ns <= _missed_ns(rank) and not missed_groups(rank, other)


def _killed(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """Ranks killed by a signal other than those of a launcher (SIGTERM) or a library (SIGABRT)."""
    return [
        rank
        for rank in ranks
        if _signal(rank) not in {None, signal.SIGABRT} and not _terminated(rank)
    ]


def _terminated(rank: RankFacts) -> bool:
    """Whether the rank ended by SIGTERM or a similar signal, even after an exception."""
    return rank.exit_status is not None and rank.exit_status.was_asked_for


def _raised(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """Ranks with the first error of their own. The loss of a peer is no error of their own."""
    own = [(failure.time_ns, rank) for rank in ranks if (failure := own_failure(rank))]
    if not own:
        return []
    first_ns, first = min(own, key=lambda item: item[0])
    # times of two nodes can be compared only within the precision of their clocks
    return [
        rank
        for time_ns, rank in own
        if rank is first or (rank.node != first.node and time_ns - first_ns < _CLOCKS_NS)
    ]


def _asked(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    return [rank for rank in ranks if was_asked(rank)]


def _missing(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """Ranks that never reached a collective in which other ranks were."""
    return [
        rank
        for rank in ranks
        if any(missed_groups(rank, other) for other in ranks)
        and not any(missed_groups(other, rank) for other in ranks)
    ]


def _aborted(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    return [rank for rank in ranks if _signal(rank) == signal.SIGABRT]


def _signal(rank: RankFacts) -> int | None:
    return rank.exit_status.signal if rank.exit_status else None


def _missed_ns(rank: RankFacts) -> int:
    return rank.now_ns if rank.gone_ns is None else rank.gone_ns


def _alive_ns(rank: RankFacts) -> int:
    return _missed_ns(rank) if rank.alive_ns is None else rank.alive_ns
