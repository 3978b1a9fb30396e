"""Everybody waits, nobody is at work: for each other, in other collectives, or for the wire."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.rank import Arrival, RankFacts, Waiter
from dfx_agent.judge.hang import sentences
from dfx_agent.judge.hang.role import Role
from dfx_agent.judge.hang.standstill import NO_PROGRESS_SECONDS
from dfx_agent.judge.words import calls_text, ranks_text, waits_text
from dfx_agent.snapshot import Verdict
from dfx_agent.wire.records import DDP_GRADIENTS

Node = TypeVar("Node", bound=Hashable)
UNFINISHED_SECONDS = 30.0


def deadlock(role: Role, absent: list[RankFacts], waiters: list[Waiter]) -> Verdict:
    """Nobody is at work and nobody is at fault: they wait for each other, or for the wire."""
    ordered = [waiter for waiter in waiters if waiter.arrival.sequence is not None]
    if _have_other_operations(ordered):
        return _mismatched(role, ordered)
    waiting = {waiter.rank for waiter in waiters}
    if any(rank not in waiting for rank in absent):
        summary = sentences.JUST_ARRIVED(waiting=capitalized(calls_text(waiters)))
        return role.verdict("clear", summary)
    in_circle = _circle(role, waiters)
    if any(waiter.arrival.peer is not None for waiter in in_circle):
        return _circular(role, in_circle)
    if not absent:
        return _all_arrived(role, waiters, [])
    last = [w for w in waiters if w.rank in absent and not role.absent([w])]
    if not last or any(_is_passed_by_another(role, waiter) for waiter in last):
        return _mismatched(role, ordered)
    return _all_arrived(role, last, [waiter.rank for waiter in last])


def _circle(role: Role, waiters: list[Waiter]) -> list[Waiter]:
    """Ranks that wait for each other, each for the next one."""
    by_rank: dict[RankFacts, list[Waiter]] = {}
    for waiter in waiters:
        by_rank.setdefault(waiter.rank, []).append(waiter)
    found = circle({rank: role.absent(waits) for rank, waits in by_rank.items()})
    following = zip(found, found[1:] + found[:1], strict=True)
    return [
        next(w for w in by_rank[rank] if other in role.absent([w])) for rank, other in following
    ]


def _circular(role: Role, waiters: list[Waiter]) -> Verdict:
    """Nothing moves any of them, unless what was sent before is still under way."""
    since_ns = max(waiter.arrival.begin_ns for waiter in waiters)
    seconds = (role.now_ns - since_ns) / 1e9
    ranks = [waiter.rank for waiter in waiters]
    places = ", ".join(
        calls_text([w]) + ("" if w.arrival.peer is not None else f" for {ranks_text([other])}")
        for w, other in zip(waiters, ranks[1:] + ranks[:1], strict=True)
    )
    summary = sentences.CIRCULAR(age=seconds_text(seconds), waits=places)
    usual_seconds = max(role.usual_seconds(w.arrival) for w in waiters)
    if seconds < max(UNFINISHED_SECONDS, usual_seconds):
        is_usual = usual_seconds > UNFINISHED_SECONDS
        return Verdict("hang", "clear" if is_usual else "insufficient evidence", role.name, summary)
    lines = [waits_text([waiter]) for waiter in waiters]
    return role.found("circular wait", summary, ranks, lines, since_ns)


def _is_passed_by_another(role: Role, waiter: Waiter) -> bool:
    """Whether a rank that has passed this number did something else under it."""
    operation, group, sequence = waiter.arrival[:3]
    if sequence is None:
        return False
    for rank in role.living:
        other = rank.operation(group, sequence)
        if other is None and rank.reached.get(group, -1) > sequence:
            in_ddp = [a for a in rank.arrivals if a.operation == DDP_GRADIENTS]
            other = DDP_GRADIENTS if in_ddp else None
        if other is not None and other != operation:
            return True
    return False


def _mismatched(role: Role, waiters: list[Waiter]) -> Verdict:
    """To blame are those in the collective that the fewest are in; all of them on a tie.

    Ranks that have waited in one of them for less than 10 s count too.
    """
    places: dict[str, list[Waiter]] = {}
    for waiter in role.in_same(waiters):
        places.setdefault(str(waiter.arrival), []).append(waiter)
    fewest = min(map(len, places.values()))
    odd = [w.rank for group in places.values() if len(group) == fewest for w in group]
    age, names = role.age_seconds(waiters), {group[0].arrival.call for group in places.values()}
    say = calls_text if len(names) == len(places) else waits_text  # the same call of other numbers
    summary = sentences.MISMATCHED(
        age=seconds_text(age), calls=", ".join(map(say, places.values()))
    )
    lines = [waits_text(group) for group in places.values()]
    since_ns = min(waiter.arrival.begin_ns for waiter in waiters)
    return role.found("mismatched collectives", summary, odd, lines, since_ns)


def _all_arrived(role: Role, waiters: list[Waiter], to_blame: list[RankFacts]) -> Verdict:
    """Everybody known is there; others may not be known."""
    age, first = role.age_seconds(waiters), waiters[0].arrival
    said = {"waiting": capitalized(calls_text(waiters)), "age": seconds_text(age)}
    if any(w.arrival.sequence is None and w.arrival.peer is None for w in waiters):
        if age < NO_PROGRESS_SECONDS:
            return role.verdict("clear", sentences.ALL_WAIT(**said))
        return role.verdict("insufficient evidence", sentences.WAIT_FOR_UNKNOWN(**said))
    if age < max(UNFINISHED_SECONDS, *(role.usual_seconds(w.arrival) for w in waiters)):
        return role.verdict("clear", sentences.ALL_WAIT(**said))
    unseen = _unseen_text(role, first)
    if unseen:
        summary = sentences.WAIT_FOR_UNSEEN(**said, unseen=unseen)
        return role.verdict("insufficient evidence", summary)
    if first.peer is None and len(role.members(first)) < 2:
        return _nobody_comes(role, sentences.MEMBERS_UNKNOWN(**said))
    since_ns = min(waiter.arrival.begin_ns for waiter in waiters)
    if first.peer is not None:
        to_blame = [waiters[0].rank, *role.members(first)]
    summary, lines = sentences.UNFINISHED(**said), [waits_text(waiters)]
    return role.found("collective does not finish", summary, to_blame, lines, since_ns)


def _unseen_text(role: Role, arrival: Arrival) -> str:
    """Who of those that it waits for is not observed, with the verb; "" when all are."""
    if arrival.peer is not None:
        return "" if role.members(arrival) else f"Rank {arrival.peer} is"
    num_unseen = role.num_unseen()
    if not num_unseen:
        return ""
    return f"{num_unseen} rank{'s' if num_unseen > 1 else ''} of the job " + (
        "are" if num_unseen > 1 else "is"
    )


def _nobody_comes(role: Role, summary: str) -> Verdict:
    """All ranks are here, its members are not known: where all wait, nobody comes."""
    if all(rank.is_blocked for rank in role.living):
        ordered = [w for w in role.waiters() if w.arrival.sequence is not None]
        if {w.rank for w in ordered} == set(role.living):
            return _mismatched(role, ordered)
    return role.verdict("insufficient evidence", summary)


def _have_other_operations(waiters: Iterable[Waiter]) -> bool:
    """Whether one number of one group is one operation here and another one there."""
    places = {w.arrival[:3] for w in waiters if w.arrival.operation}
    return len({(group, sequence) for _, group, sequence in places}) < len(places)


def circle(misses: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Some nodes of which each misses the next one, and the last the first; [] for none."""
    done: set[Node] = set()
    for start in misses:
        path: dict[Node, int] = {}
        stack = [(start, iter(misses[start]))]
        path[start] = 0
        while start not in done:
            node, others = stack[-1]
            following = next((o for o in others if o not in done), None)
            if following is None:
                stack.pop()
                del path[node]
                done.add(node)
            elif following in path:
                return list(path)[path[following] :]
            else:
                path[following] = len(path)
                stack.append((following, iter(misses.get(following, ()))))
    return []
