"""The verdict if all ranks wait: for each other, in different collectives, or for the network."""

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
    """No rank is at work or at fault: they wait for each other, or for the network."""
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
    last = [waiter for waiter in waiters if waiter.rank in absent and not role.absent([waiter])]
    if not last or any(_is_passed_by_another(role, waiter) for waiter in last):
        return _mismatched(role, ordered)
    return _all_arrived(role, last, [waiter.rank for waiter in last])


def _circle(role: Role, waiters: list[Waiter]) -> list[Waiter]:
    """Ranks that wait for each other in a circle, each for the next one."""
    by_rank: dict[RankFacts, list[Waiter]] = {}
    for waiter in waiters:
        by_rank.setdefault(waiter.rank, []).append(waiter)
    found = circle({rank: role.absent(waits) for rank, waits in by_rank.items()})
    following = zip(found, found[1:] + found[:1], strict=True)
    return [
        next(waiter for waiter in by_rank[rank] if other in role.absent([waiter]))
        for rank, other in following
    ]


def _circular(role: Role, waiters: list[Waiter]) -> Verdict:
    """The verdict on a circle of waits. A message may still be in transit, so it needs 30 s."""
    since_ns = max(waiter.arrival.begin_ns for waiter in waiters)
    seconds = (role.now_ns - since_ns) / 1e9
    ranks = [waiter.rank for waiter in waiters]
    waits = ", ".join(
        calls_text([waiter])
        + ("" if waiter.arrival.peer is not None else f" for {ranks_text([other])}")
        for waiter, other in zip(waiters, ranks[1:] + ranks[:1], strict=True)
    )
    summary = sentences.CIRCULAR(age=seconds_text(seconds), waits=waits)
    usual_seconds = max(role.usual_seconds(waiter.arrival) for waiter in waiters)
    if seconds < max(UNFINISHED_SECONDS, usual_seconds):
        is_usual = usual_seconds > UNFINISHED_SECONDS
        return Verdict("hang", "clear" if is_usual else "insufficient evidence", role.name, summary)
    lines = [waits_text([waiter]) for waiter in waiters]
    return role.found("circular wait", summary, ranks, lines, since_ns)


def _is_passed_by_another(role: Role, waiter: Waiter) -> bool:
    """Whether another rank has passed this sequence number with a different operation."""
    operation, group, sequence = waiter.arrival[:3]
    if sequence is None:
        return False
    for rank in role.living:
        other = rank.operation(group, sequence)
        if other is None and rank.reached.get(group, -1) > sequence:
            in_ddp = [arrival for arrival in rank.arrivals if arrival.operation == DDP_GRADIENTS]
            other = DDP_GRADIENTS if in_ddp else None
        if other is not None and other != operation:
            return True
    return False


def _mismatched(role: Role, waiters: list[Waiter]) -> Verdict:
    """The finding if ranks wait in different collectives.

    Ranks in the collective with the fewest ranks are blamed, or all ranks on a tie. Ranks that have
    waited for less than 10 s count too.
    """
    waiters_by_call: dict[str, list[Waiter]] = {}
    for waiter in role.in_same(waiters):
        waiters_by_call.setdefault(str(waiter.arrival), []).append(waiter)
    groups = list(waiters_by_call.values())
    fewest = min(map(len, groups))
    odd = [waiter.rank for group in groups if len(group) == fewest for waiter in group]
    age, names = role.age_seconds(waiters), {group[0].arrival.call for group in groups}
    # the same call with different numbers needs the numbers
    text = calls_text if len(names) == len(groups) else waits_text
    summary = sentences.MISMATCHED(age=seconds_text(age), calls=", ".join(map(text, groups)))
    lines = [waits_text(group) for group in groups]
    since_ns = min(waiter.arrival.begin_ns for waiter in waiters)
    return role.found("mismatched collectives", summary, odd, lines, since_ns)


def _all_arrived(role: Role, waiters: list[Waiter], to_blame: list[RankFacts]) -> Verdict:
    """The verdict if all observed members have arrived. Some members may not be observed."""
    age, first = role.age_seconds(waiters), waiters[0].arrival
    fields = {"waiting": capitalized(calls_text(waiters)), "age": seconds_text(age)}
    if any(waiter.arrival.sequence is None and waiter.arrival.peer is None for waiter in waiters):
        if age < NO_PROGRESS_SECONDS:
            return role.verdict("clear", sentences.ALL_WAIT(**fields))
        return role.verdict("insufficient evidence", sentences.WAIT_FOR_UNKNOWN(**fields))
    if age < max(UNFINISHED_SECONDS, *(role.usual_seconds(waiter.arrival) for waiter in waiters)):
        return role.verdict("clear", sentences.ALL_WAIT(**fields))
    unseen = _unseen_text(role, first)
    if unseen:
        summary = sentences.WAIT_FOR_UNSEEN(**fields, unseen=unseen)
        return role.verdict("insufficient evidence", summary)
    if first.peer is None and len(role.members(first)) < 2:
        return _no_member_arrives(role, sentences.MEMBERS_UNKNOWN(**fields))
    since_ns = min(waiter.arrival.begin_ns for waiter in waiters)
    if first.peer is not None:
        to_blame = [waiters[0].rank, *role.members(first)]
    summary, lines = sentences.UNFINISHED(**fields), [waits_text(waiters)]
    return role.found("collective does not finish", summary, to_blame, lines, since_ns)


def _unseen_text(role: Role, arrival: Arrival) -> str:
    """Ranks that are waited for but not observed, as in "4 ranks of the job are"; "" if none."""
    if arrival.peer is not None:
        return "" if role.members(arrival) else f"Rank {arrival.peer} is"
    num_unseen = role.num_unseen()
    if not num_unseen:
        return ""
    return f"{num_unseen} rank{'s' if num_unseen > 1 else ''} of the job " + (
        "are" if num_unseen > 1 else "is"
    )


def _no_member_arrives(role: Role, summary: str) -> Verdict:
    """The verdict if the members of the group are unknown.

    If all living ranks are blocked in collectives, the calls do not match.
    """
    if all(rank.is_blocked for rank in role.living):
        ordered = [waiter for waiter in role.waiters() if waiter.arrival.sequence is not None]
        if {waiter.rank for waiter in ordered} == set(role.living):
            return _mismatched(role, ordered)
    return role.verdict("insufficient evidence", summary)


def _have_other_operations(waiters: Iterable[Waiter]) -> bool:
    """Whether ranks called different operations with one sequence number of one group."""
    calls = {waiter.arrival[:3] for waiter in waiters if waiter.arrival.operation}
    return len({(group, sequence) for _, group, sequence in calls}) < len(calls)


def circle(misses: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """A cycle in a graph: each node misses the next one, and the last the first; [] if none."""
    done: set[Node] = set()
    for start in misses:
        path: dict[Node, int] = {}
        stack = [(start, iter(misses[start]))]
        path[start] = 0
        while start not in done:
            node, others = stack[-1]
            following = next((other for other in others if other not in done), None)
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
