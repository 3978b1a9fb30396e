"""Ranks, waits and stacks in words, for the sentences and the evidence of verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from dfx_agent.facts.rank import Arrival, RankFacts, Waiter
from dfx_agent.facts.stacks import merge
from dfx_agent.judge.unfinished import unfinished_lines

# cause of a verdict that does not blame anybody for what the host did
BUSY_HOST = "busy host"

_MAX_RANKS = 8
_MAX_OUTLIERS = 4
_MAX_PLACES = 4
_STACK_FRAMES = 6
_PROCESS = re.compile(r"p(\d+)(?:\.\d+)?")  # the label of a process without a rank


def uncapitalized(text: str) -> str:
    """A sentence as part of another one."""
    return text[:1].lower() + text[1:]


def ranks_text(ranks: Iterable[RankFacts]) -> str:
    """As in "rank 2", "ranks 0, 1, 3", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 24 more".

    Of a job on several nodes with their names.
    """
    return places_text({rank.label: rank.node for rank in ranks})


def named(ranks: Iterable[RankFacts]) -> Callable[[Iterable[str]], str]:
    """The same for labels of these ranks."""
    nodes = {rank.label: rank.node for rank in ranks}
    return lambda labels: places_text({label: nodes.get(label, "") for label in labels})


def places_text(nodes: Mapping[str, str]) -> str:
    """Label -> node, "" where there is but one: as in "ranks 2, 3 on node-b"."""
    named = sorted(set(nodes.values()) - {""})
    if not named:
        return labels_text(nodes)
    where = named[0] if len(named) == 1 else f"{len(named)} nodes"
    return f"{labels_text(nodes)} on {where}"


def labels_text(labels: Iterable[str]) -> str:
    """The same for labels, each named once; processes without a rank as in "process 4711"."""
    ordered = sorted(set(labels), key=lambda label: (len(label), label))
    pids = [found[1] for label in ordered if (found := _PROCESS.fullmatch(label))]
    if pids and len(pids) == len(ordered):
        return f"process{'es' if len(pids) > 1 else ''} {_first_of(pids)}"
    return f"rank{'s' if len(ordered) > 1 else ''} {_first_of(ordered)}"


def percent(ratio: float) -> str:
    """As in "19 %"."""
    return f"{100 * ratio:.0f} %"


def absent_text(noun: str, present: Collection[int], num_expected: int) -> str:
    """Which of 0 to ``num_expected - 1`` are not ``present``: as in "ranks 4, 5"; "" if none is.

    ``num_expected`` is whatever a job reports: absent numbers are counted, and few are listed.
    """
    num_absent = num_expected - sum(0 <= number < num_expected for number in set(present))
    if num_absent <= 0:
        return ""
    absent = (str(number) for number in range(num_expected) if number not in present)
    first = list(islice(absent, _MAX_RANKS))
    return f"{noun}{'s' if num_absent > 1 else ''} {_first_of(first, num_absent)}"


def _first_of(names: Sequence[str], num_names: int | None = None) -> str:
    num_more = (len(names) if num_names is None else num_names) - _MAX_RANKS
    more = f" and {num_more} more" if num_more > 0 else ""
    return f"{', '.join(names[:_MAX_RANKS])}{more}"


def have_text(ranks: Sequence[RankFacts]) -> str:
    """As in "rank 2 has", "ranks 0, 1 have"."""
    return f"{ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def calls_text(waiters: Sequence[Waiter]) -> str:
    """The same as ``waits_text`` for a headline: without sequence numbers."""
    return waits_text(waiters, lambda arrival: arrival.call)


def waits_text(waiters: Sequence[Waiter], name: Callable[[Arrival], str] = str) -> str:
    """As in "ranks 0, 1 wait in all_reduce@0 #57, rank 2 waits in all_gather@tp #9".

    A rank in several collectives is named in its first one; in several sends and receives, in each.
    """
    has_peers = any(waiter.arrival.peer is not None for waiter in waiters)
    told = waiters if has_peers else _first_waits(waiters)
    names = {w.arrival[1:3]: name(w.arrival) for w in told if w.arrival.operation}
    places: dict[str, list[RankFacts]] = {}
    for rank, arrival in told:
        # whose device alone waits is in the operation that others are in under this number
        where = name(arrival)
        where = where if arrival.operation else names.get(arrival[1:3], where)
        places.setdefault(where, []).append(rank)
    named = [
        f"{ranks_text(ranks)} {'wait' if len(set(ranks)) > 1 else 'waits'} in {where}"
        for where, ranks in list(places.items())[:_MAX_PLACES]
    ]
    more = [f"{len(places) - _MAX_PLACES} waits more"] if len(places) > _MAX_PLACES else []
    return ", ".join(named + more)


def _first_waits(waiters: Iterable[Waiter]) -> list[Waiter]:
    first: dict[RankFacts, Arrival] = {}
    for rank, arrival in waiters:
        first.setdefault(rank, arrival)
    return list(map(Waiter, first, first.values()))


def behind_lines(rank: RankFacts, waiters: Sequence[Waiter]) -> list[str]:
    """How far a rank is in the groups that the others wait in."""
    lines = []
    for group, sequence in dict.fromkeys(
        (w.arrival.group, w.arrival.sequence) for w in waiters if w.arrival.sequence is not None
    ):
        reached = rank.reached.get(group)
        if reached is None and rank.flight:
            continue  # no hook saw this group: the lines of the flight recorder say it
        own = "none" if reached is None else f"#{reached}"
        lines.append(
            f"{ranks_text([rank])}: last collective of group {group} is {own}, "
            f"the others are in #{sequence}"
        )
    return lines


def flight_lines(ranks: Sequence[RankFacts]) -> list[str]:
    """Who has issued the collective that holds the job up, and who has not."""
    known = {rank.label: rank.flight for rank in ranks if rank.flight is not None}
    return unfinished_lines(known, named(ranks), ranks[0].now_seconds) if known else []


def stack_lines(ranks: Iterable[RankFacts]) -> list[str]:
    """Where main threads stand: what most share, then the outliers; innermost call last."""
    known = list(ranks)
    taken = {rank.label: rank.stacks for rank in known}
    merged = merge({label: stacks for label, stacks in taken.items() if stacks is not None})
    ranks_named = named(known)
    lines = [
        f"stack of {ranks_named(group.ranks)} (of {len(taken)}): {group.innermost(_STACK_FRAMES)}"
        for group in merged[: 1 + _MAX_OUTLIERS]
    ]
    without = [label for label, stacks in taken.items() if stacks is None]
    if without:
        lines.append(f"no stacks of {ranks_named(without)}")
    return lines
