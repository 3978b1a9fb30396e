"""What torch's flight recorder says of ranks that are quiet, also where no hook saw it."""

from __future__ import annotations

from dfx_agent.base.text import age_text
from dfx_agent.facts.rank import Arrival, RankFacts, Waiter
from dfx_agent.judge.hang import sentences
from dfx_agent.judge.hang.role import WAITING_SECONDS, Role
from dfx_agent.judge.unfinished import Unfinished, first_unfinished
from dfx_agent.judge.words import named
from dfx_agent.snapshot import Verdict

_LATE_RECORDS_SECONDS = WAITING_SECONDS + 10.0


def recorded(role: Role) -> list[Unfinished]:
    """What quiet ranks wait in for 10 s by torch's flight recorder, the oldest first."""
    quiet = [rank for rank in role.living if rank.quiet_seconds >= WAITING_SECONDS]
    recorded = {rank.label: rank.flight for rank in quiet}
    known = {label: record for label, record in recorded.items() if record is not None}
    found = first_unfinished(known)
    return [one for one in found if _seconds_since(role, one) >= WAITING_SECONDS]


def is_complete(role: Role, unfinished: Unfinished) -> bool:
    """Whether the records of all ranks are there, or were waited for in vain.

    Ranks write them when they have stood still for some time, so not all at one instant: who is
    the odd one among the first two is not known.
    """
    recorded = {*unfinished.issued, *unfinished.missing}
    is_whole = all(rank.label in recorded for rank in role.living)
    return is_whole or _seconds_since(role, unfinished) >= _LATE_RECORDS_SECONDS


def _seconds_since(role: Role, unfinished: Unfinished) -> float:
    now_seconds = role.living[0].epoch_seconds(role.now_ns)
    return now_seconds - unfinished.begin_ns / 1e9


def waiters_of(role: Role, found: list[Unfinished]) -> tuple[list[Waiter], list[RankFacts]]:
    """(who waits, for whom) where no hook saw it: the job hung before the guest came."""
    one = next((one for one in found if one.missing), None)
    if one is None:
        return [], []
    begin_ns = role.now_ns - int(_seconds_since(role, one) * 1e9)
    by_label = {rank.label: rank for rank in role.living}
    waiters = [
        Waiter(by_label[label], Arrival(entry.operation, one.group, one.sequence, begin_ns))
        for label, entry in one.issued.items()
        if entry is not None and not entry.is_finished
    ]
    return waiters, [by_label[label] for label in one.missing]


def different(role: Role, unfinished: Unfinished) -> Verdict:
    """To blame are those in the collective that the fewest are in; all of them on a tie."""
    places = unfinished.places()
    fewest = min(len(labels) for labels, _ in places)
    odd = {label for labels, _ in places if len(labels) == fewest for label in labels}
    ranks_named = named(role.ranks)
    exact = [f"{ranks_named(labels)} called {what}" for labels, what in places]
    short = [text.partition("@")[0] for text in exact]
    names = {what.partition("@")[0] for _, what in places}
    calls = " while ".join(short if len(names) == len(places) else exact)
    seconds = _seconds_since(role, unfinished)
    return role.found(
        "mismatched collectives",
        sentences.MISMATCHED(age=age_text(seconds), calls=calls),
        [rank for rank in role.ranks if rank.label in odd],
        exact,
        role.now_ns - int(seconds * 1e9),
    )
