"""Texts about ranks, waits and stacks, for the sentences and the evidence of verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from dfx_agent.facts.rank import Arrival, RankFacts, Waiter
from dfx_agent.facts.stacks import merge
from dfx_agent.judge.unfinished import unfinished_lines

# cause of a verdict that blames no rank, because the host was overloaded
BUSY_HOST = "busy host"

_MAX_RANKS = 8
_MAX_OUTLIERS = 4
_MAX_CALLS = 4
_STACK_FRAMES = 6
_PROCESS = re.compile(r"p(\d+)(?:\.\d+)?")  # the label of a process without a rank


def ranks_text(ranks: Iterable[RankFacts]) -> str:
    """As in "rank 2", "ranks 0, 1, 3", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 24 more".

    Names of nodes are added if the job runs on several nodes.
    """
    return places_text({rank.label: rank.node for rank in ranks})


def named(ranks: Iterable[RankFacts]) -> Callable[[Iterable[str]], str]:
    """A function that returns the same text for labels of these ranks."""
    nodes = {rank.label: rank.node for rank in ranks}
    return lambda labels: places_text({label: nodes.get(label, "") for label in labels})


def places_text(nodes: Mapping[str, str]) -> str:
    """As in "ranks 2, 3 on node-b". ``nodes``: node by label, "" if the job has only one."""
    named = sorted(set(nodes.values()) - {""})
    if not named:
        return labels_text(nodes)
    where = named[0] if len(named) == 1 else f"{len(named)} nodes"
    return f"{labels_text(nodes)} on {where}"


def labels_text(labels: Iterable[str]) -> str:
    """As in "ranks 0, 1, 3", or "process 4711" for a process without a rank."""
    ordered = sorted(set(labels), key=lambda label: (len(label), label))
    pids = [found[1] for label in ordered if (found := _PROCESS.fullmatch(label))]
    if pids and len(pids) == len(ordered):
        return f"process{'es' if len(pids) > 1 else ''} {_first_of(pids)}"
    return f"rank{'s' if len(ordered) > 1 else ''} {_first_of(ordered)}"


def percent(ratio: float) -> str:
    """As in "19 %"."""
    return f"{100 * ratio:.0f} %"


def absent_text(noun: str, present: Collection[int], num_expected: int) -> str:
    """The numbers below ``num_expected`` that are not present, as in "ranks 4, 5"; "" if none.

    A job may report any ``num_expected``: at most 8 numbers are listed, the rest is counted.
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
    """As ``waits_text``, but without sequence numbers, for a headline."""
    return waits_text(waiters, lambda arrival: arrival.call)


def waits_text(waiters: Sequence[Waiter], name: Callable[[Arrival], str] = str) -> str:
    """As in "ranks 0, 1 wait in all_reduce@0 #57, rank 2 waits in all_gather@tp #9".

    A rank that waits in several collectives is named with the first one. A rank that waits in
    several sends and receives is named with each.
    """
    has_peers = any(waiter.arrival.peer is not None for waiter in waiters)
    shown = waiters if has_peers else _first_waits(waiters)
    names = {
        waiter.arrival[1:3]: name(waiter.arrival) for waiter in shown if waiter.arrival.operation
    }
    ranks_by_call: dict[str, list[RankFacts]] = {}
    for rank, arrival in shown:
        # if only the device of a rank waits, other ranks know the operation of this number
        call = name(arrival)
        call = call if arrival.operation else names.get(arrival[1:3], call)
        ranks_by_call.setdefault(call, []).append(rank)
    named = [
        f"{ranks_text(ranks)} {'wait' if len(set(ranks)) > 1 else 'waits'} in {call}"
        for call, ranks in list(ranks_by_call.items())[:_MAX_CALLS]
    ]
    num_more = len(ranks_by_call) - _MAX_CALLS
    more = [f"{num_more} more waits"] if num_more > 0 else []
    return ", ".join(named + more)


def _first_waits(waiters: Iterable[Waiter]) -> list[Waiter]:
    first: dict[RankFacts, Arrival] = {}
    for rank, arrival in waiters:
        first.setdefault(rank, arrival)
    return list(map(Waiter, first, first.values()))


def behind_lines(rank: RankFacts, waiters: Sequence[Waiter]) -> list[str]:
    """Evidence: the last collective of a rank in each group that other ranks wait in."""
    lines = []
    for group, sequence in dict.fromkeys(
        (waiter.arrival.group, waiter.arrival.sequence)
        for waiter in waiters
        if waiter.arrival.sequence is not None
    ):
        reached = rank.reached.get(group)
        if reached is None and rank.flight:
            continue  # no hook saw this group; the flight recorder lines contain it
        own = "none" if reached is None else f"#{reached}"
        lines.append(
            f"{ranks_text([rank])}: last collective of group {group} is {own}, "
            f"the others are in #{sequence}"
        )
    return lines


def flight_lines(ranks: Sequence[RankFacts]) -> list[str]:
    """Evidence: which ranks have issued the unfinished collectives, and which have not."""
    flight_by_label = {rank.label: rank.flight for rank in ranks if rank.flight is not None}
    if not flight_by_label:
        return []
    return unfinished_lines(flight_by_label, named(ranks), ranks[0].now_seconds)


def stack_lines(ranks: Iterable[RankFacts]) -> list[str]:
    """Evidence: stacks of the main threads, the most common one first; innermost call last."""
    ranks = list(ranks)
    stacks_by_label = {rank.label: rank.stacks for rank in ranks}
    merged = merge(
        {label: stacks for label, stacks in stacks_by_label.items() if stacks is not None}
    )
    named_text = named(ranks)
    lines = [
        f"stack of {named_text(group.ranks)} (of {len(ranks)}): {group.innermost(_STACK_FRAMES)}"
        for group in merged[: 1 + _MAX_OUTLIERS]
    ]
    without = [label for label, stacks in stacks_by_label.items() if stacks is None]
    if without:
        lines.append(f"no stacks of {named_text(without)}")
    return lines
