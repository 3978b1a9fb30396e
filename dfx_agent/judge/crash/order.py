"""Who went first of those that died, and who only went with them.

A death lies between two instants: when the rank was last known to go on (it was seen alive, or it
raised an exception), and when it was missed. Deaths that overlap are put in order by how they
ended: nobody is killed for a peer's exception, but an exception is what the loss of a peer raises.
When a death was noticed says nothing about the order.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from dfx_agent.facts.rank import RankFacts
from dfx_agent.judge.crash.endings import OUT_OF_MEMORY, cause_of, has_raised, own_failure

_CLOCKS_NS = 500 * 10**6


def first_of(died: Sequence[RankFacts]) -> list[RankFacts]:
    """Those whom nobody is known to precede; at least one is given."""
    earliest = min(died, key=_missed_ns)
    together = [rank for rank in died if _alive_ns(rank) <= _missed_ns(earliest)]
    if len(together) == 1:
        return together
    for evidence in (_killed, _raised, _asked, _missing, _aborted):
        if found := evidence(together):
            return found
    return together


def was_taken_along(rank: RankFacts, died: Sequence[RankFacts]) -> bool:
    """Whether a launcher ended this rank because another rank had died before.

    A launcher sends SIGTERM to all ranks at once and SIGKILL seconds later to those that still run.
    A rank that died by SIGKILL therefore followed only if it was seen alive after a peer had ended
    by SIGTERM; when its death was noticed says nothing.
    """
    status = rank.exit_status
    if status is None or cause_of(rank) == OUT_OF_MEMORY:
        return False
    if was_asked(rank):
        return any(_could_cause(other, rank) for other in died if not was_asked(other))
    ended_ns = [_missed_ns(other) for other in died if was_asked(other)]
    return status.signal == signal.SIGKILL and any(ns <= _alive_ns(rank) for ns in ended_ns)


def was_asked(rank: RankFacts) -> bool:
    """Whether it ended by SIGTERM or the like, and by no exception before that."""
    return _terminated(rank) and not has_raised(rank)


def missed_groups(left: RankFacts, other: RankFacts) -> list[str]:
    """Groups of both in which the other one went further."""
    return [g for g, n in left.reached.items() if other.reached.get(g, n) > n]


def _could_cause(other: RankFacts, rank: RankFacts) -> bool:
    """Whether a launcher may have told ``rank`` to end since it saw ``other`` end."""
    if _missed_ns(other) < _alive_ns(rank):
        return True
    ended_after_ns = max(other.there_ns or 0, _alive_ns(other))
    return ended_after_ns <= _missed_ns(rank) and not missed_groups(rank, other)


def _killed(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """By a signal that neither a library sends to its own process nor a launcher to all ranks."""
    return [r for r in ranks if _signal(r) not in {None, signal.SIGABRT} and not _terminated(r)]


def _terminated(rank: RankFacts) -> bool:
    """By SIGTERM or the like, even if it had raised an exception before."""
    return rank.exit_status is not None and rank.exit_status.was_asked_for


def _raised(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """The rank whose own error came first: not the loss of a peer, which follows a death."""
    own = [(failure.time_ns, rank) for rank in ranks if (failure := own_failure(rank))]
    if not own:
        return []
    first_ns, first = min(own, key=lambda item: item[0])
    # instants of two nodes are compared within the precision of their clocks
    return [
        rank
        for time_ns, rank in own
        if rank is first or (rank.node != first.node and time_ns - first_ns < _CLOCKS_NS)
    ]


def _asked(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    return [rank for rank in ranks if was_asked(rank)]


def _missing(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """Who was waited for: the others went on to a collective that these never came to."""
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
