"""A rank that ended in order while the others went on: they fail for want of it.

By what is known of process groups: it never came to a collective that the others took part in.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from dfx_agent.base.text import capitalized
from dfx_agent.facts.rank import RankFacts
from dfx_agent.judge.crash.endings import OUT_OF_MEMORY, cause_of, endings_text, has_crashed
from dfx_agent.judge.crash.failures import lost_peer
from dfx_agent.judge.crash.order import missed_groups
from dfx_agent.judge.crash.sentences import LEFT_EARLY
from dfx_agent.judge.words import ranks_text
from dfx_agent.snapshot import Verdict

CAUSE = "left early"


def leavers(first: Sequence[RankFacts], ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """Who ended with success before ``first``, the first to die, and left all of them behind."""
    return [
        rank
        for rank in ranks
        if not has_crashed(rank, ranks) and all(_is_left_behind(by=rank, died=d) for d in first)
    ]


def left_early(role: str, left: Sequence[RankFacts], died: Sequence[RankFacts]) -> Verdict:
    """To blame is who left; ``died``: the others, later."""
    first = min(left, key=_end_ns)
    step = first.newest_step
    return Verdict(
        kind="crash",
        state="found",
        role=role,
        summary=LEFT_EARLY(
            ranks=capitalized(ranks_text(left)),
            step="" if step is None else f" in step {step}",
            failed=capitalized(ranks_text(died)),
            ending=endings_text(died),
        ),
        ranks=tuple(rank.label for rank in left),
        stage=first.stage,
        cause=CAUSE,
        step=step,
        since_seconds=first.epoch_seconds(_end_ns(first)),
        evidence=tuple(_lines(left, died[0])),
    )


def _is_left_behind(*, by: RankFacts, died: RankFacts) -> bool:
    """Compare the last event of both; when an agent noticed a death says little.

    The exit code of ``by`` may be unknown (after an attach), and its process may still shut down.
    """
    status = by.exit_status
    has_left = by.is_ending or (by.gone_ns is not None and by.state == "exited")
    if not has_left or (status is not None and not status.is_success):
        return False
    is_missed_first = by.gone_ns is not None and by.gone_ns <= (died.gone_ns or 0)
    is_first = _end_ns(by) < _end_ns(died) and (is_missed_first or lost_peer(died))
    return is_first and _fails_by_itself(died) and bool(missed_groups(by, died))


def _fails_by_itself(died: RankFacts) -> bool:
    """As who loses a peer does: an error, or torch's watchdog aborts it; nobody killed it."""
    status = died.exit_status
    return cause_of(died) != OUT_OF_MEMORY and (
        status is None or status.signal in {None, signal.SIGABRT}
    )


def _lines(left: Sequence[RankFacts], other: RankFacts) -> list[str]:
    return [
        f"{ranks_text([rank])}: last collective of group {group} is #{rank.reached[group]}, "
        f"{ranks_text([other])} went on to #{other.reached[group]}"
        for rank in left
        for group in missed_groups(rank, other)
    ]


def _end_ns(rank: RankFacts) -> int:
    """Its last sign of life."""
    return rank.last_event_ns or rank.gone_ns or 0
