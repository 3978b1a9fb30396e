"""Who is waited for: at fault, still at work, or itself waiting for a server."""

from __future__ import annotations

from collections.abc import Mapping

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.rank import RankFacts, Waiter
from dfx_agent.judge.hang import limits, sentences
from dfx_agent.judge.hang.actors import is_idle, not_called
from dfx_agent.judge.hang.limits import Excuse
from dfx_agent.judge.hang.places import does_text, place_text, where_text
from dfx_agent.judge.hang.remote_waits import RemoteWait, overdue
from dfx_agent.judge.hang.role import Role
from dfx_agent.judge.hang.suspended import suspended_seconds
from dfx_agent.judge.words import (
    behind_lines,
    calls_text,
    flight_lines,
    have_text,
    ranks_text,
    stack_lines,
    waits_text,
)
from dfx_agent.snapshot import Verdict


def missed(role: Role, excuses: Mapping[RankFacts, Excuse], waiters: list[Waiter]) -> Verdict:
    """For whom the others wait; a server that does not answer explains who is stuck."""
    idle = [rank for rank in excuses if is_idle(rank) and excuses[rank].fault != limits.STOPPED]
    excuses = {rank: excuse for rank, excuse in excuses.items() if rank not in idle}
    if not excuses:
        return not_called(role, idle, waiters)
    faults = {excuse.fault for excuse in excuses.values()} - {""}
    server = None if faults - {limits.STUCK} else unanswered(role, waiters)
    if server is not None:
        return server
    judge = _left_behind if faults else _at_work
    return judge(role, excuses, waiters)


def _left_behind(role: Role, excuses: Mapping[RankFacts, Excuse], waiters: list[Waiter]) -> Verdict:
    """Those at fault; a stopped rank explains a stuck one, never the other way round."""
    faults = {excuse.fault for excuse in excuses.values()}
    cause = next(fault for fault in limits.FAULTS if fault in faults)
    ranks = [rank for rank, excuse in excuses.items() if excuse.fault == cause]
    others = _waiting_for(ranks, role, waiters)
    summary = _fault_text(cause, ranks)
    lines = [f"{ranks_text([rank])}: {excuses[rank].reason}" for rank in ranks[:4]]
    if others:
        age = seconds_text(role.age_seconds(others))
        summary += " " + sentences.THEY_WAIT(waiting=capitalized(calls_text(others)), age=age)
        lines.append(waits_text(others))
    lines += [line for rank in ranks[:4] for line in behind_lines(rank, others)]
    longest = max(rank.idle_seconds for rank in ranks)
    return role.found(cause, summary, ranks, lines, role.now_ns - int(longest * 1e9))


def _waiting_for(ranks: list[RankFacts], role: Role, waiters: list[Waiter]) -> list[Waiter]:
    """Who is not to blame; who has come just now, where nobody else waits for long."""
    others = [waiter for waiter in waiters if waiter.rank not in ranks]
    living = (rank for rank in role.living if rank not in ranks)
    return others or [Waiter(rank, arrival) for rank in living for arrival in rank.arrivals]


def _fault_text(cause: str, ranks: list[RankFacts]) -> str:
    """What is known of who is at fault; of a closed segment only that its process is there."""
    first = ranks[0]
    who = capitalized(ranks_text(ranks))
    have = capitalized(have_text(ranks))
    duration = seconds_text(first.idle_seconds)
    if cause == limits.LEFT and any(rank.is_ending for rank in ranks):
        return sentences.NOT_ENDING(ranks=who, duration=seconds_text(first.ending_seconds))
    if cause == limits.LEFT:
        return sentences.LEFT(ranks=who, duration=duration, place=place_text(first))
    if cause == limits.STOPPED:
        duration = seconds_text(suspended_seconds(first))
        return sentences.SUSPENDED(ranks=have, duration=duration, place=where_text(first))
    return sentences.STUCK(ranks=have, duration=duration, place=place_text(first))


def unanswered(role: Role, waiters: list[Waiter]) -> Verdict | None:
    """A server that answers no more, whether others wait for its client or not."""
    waits = overdue(role.living)
    if not waits:
        return None
    if waits[0].is_for_actors:
        return _for_actors(role, waits[0])
    ranks = [wait.rank for wait in waits]
    summary = str(waits[0])
    lines = [line for wait in waits[:4] for line in (str(wait), wait.reason)]
    if waiters:
        age = seconds_text(role.age_seconds(waiters))
        summary += " " + sentences.THEY_WAIT(waiting=capitalized(calls_text(waiters)), age=age)
        lines.append(waits_text(waiters))
    since_ns = role.now_ns - int(waits[0].seconds * 1e9)
    return role.found("no answer", summary, ranks, lines, since_ns)


def _for_actors(role: Role, wait: RemoteWait) -> Verdict:
    """Who waits for actors is not to blame; which one it is, is judged among the actors."""
    return role.verdict("insufficient evidence", str(wait), evidence=(wait.reason,))


def _at_work(role: Role, excuses: Mapping[RankFacts, Excuse], waiters: list[Waiter]) -> Verdict:
    rank, excuse = min(excuses.items(), key=lambda known: known[1].is_learned)
    lines = (
        excuse.reason, waits_text(waiters), *flight_lines(role.ranks), *stack_lines(role.ranks)
    )  # fmt: skip
    seconds = rank.ending_seconds if rank.is_ending else rank.quiet_seconds
    known = {
        "waiting": capitalized(calls_text(waiters)),
        "ranks": ranks_text([rank]),
        "does": does_text(rank),
        "place": place_text(rank),
        "duration": seconds_text(seconds),
        "limit": f"{excuse.limit_seconds:.0f} s",
    }
    if excuse.is_learned:
        return role.verdict("clear", sentences.STILL_AT_WORK(**known), evidence=lines)
    sentence = sentences.SHUTTING_DOWN if rank.is_ending else sentences.NOT_SURE
    return role.verdict("insufficient evidence", sentence(**known), evidence=lines)
