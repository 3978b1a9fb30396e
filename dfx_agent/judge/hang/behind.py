"""Who is waited for: at fault, still at work, or itself waiting for a server."""

from __future__ import annotations

from collections.abc import Mapping

from dfx_agent.durations import seconds_text
from dfx_agent.facts.rank import RankFacts, Waiter
from dfx_agent.judge.hang import limits
from dfx_agent.judge.hang.limits import Excuse
from dfx_agent.judge.hang.remote_waits import overdue
from dfx_agent.judge.hang.role import Role
from dfx_agent.judge.words import behind_lines, flight_lines, ranks_text, stack_lines, waits_text
from dfx_agent.snapshot import Verdict


def missed(role: Role, excuses: Mapping[RankFacts, Excuse], waiters: list[Waiter]) -> Verdict:
    """For whom the others wait; a server that does not answer explains who is stuck."""
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
    first = ranks[0]
    others = _waiting_for(ranks, role, waiters)
    stands = f"{ranks_text(ranks)} {_fault_text(cause, ranks)} {_where(first)}"
    summary = f"{stands} for {seconds_text(first.idle_seconds)}"
    if others:
        summary += f"; {waits_text(others)} for {seconds_text(role.age_seconds(others))}"
    lines = [f"{ranks_text([rank])}: {excuses[rank].reason}" for rank in ranks[:4]]
    lines += [line for rank in ranks[:4] for line in behind_lines(rank, others)]
    longest = max(rank.idle_seconds for rank in ranks)
    return role.found(cause, summary, ranks, lines, role.now_ns - int(longest * 1e9))


def _waiting_for(ranks: list[RankFacts], role: Role, waiters: list[Waiter]) -> list[Waiter]:
    """Who is not to blame; who has come just now, where nobody else waits for long."""
    others = [waiter for waiter in waiters if waiter.rank not in ranks]
    living = (rank for rank in role.living if rank not in ranks)
    return others or [Waiter(rank, arrival) for rank in living for arrival in rank.arrivals]


def _where(rank: RankFacts) -> str:
    """In the collective that it was stopped in, where no stage is marked."""
    is_inside = not rank.stages and rank.arrivals and rank.arrivals[0].operation
    return f"in {rank.arrivals[0]}" if is_inside else rank.place


def _fault_text(cause: str, ranks: list[RankFacts]) -> str:
    """Of who closed its records only that is known while its process is there."""
    if cause == limits.LEFT and any(rank.is_ending for rank in ranks):
        return "closed its records, is still ending, and had been"
    return limits.FAULTS[cause]


def unanswered(role: Role, waiters: list[Waiter]) -> Verdict | None:
    """A server that answers no more, whether others wait for its client or not."""
    waits = overdue(role.living)
    if not waits:
        return None
    ranks = [wait.rank for wait in waits]
    summary = "; ".join([str(waits[0]), *([waits_text(waiters)] if waiters else [])])
    lines = [line for wait in waits[:4] for line in (str(wait), wait.reason)]
    since_ns = role.now_ns - int(waits[0].seconds * 1e9)
    return role.found("no answer", summary, ranks, lines, since_ns)


def _at_work(role: Role, excuses: Mapping[RankFacts, Excuse], waiters: list[Waiter]) -> Verdict:
    rank, excuse = min(excuses.items(), key=lambda known: known[1].is_learned)
    lines = (excuse.reason, *flight_lines(role.ranks), *stack_lines(role.ranks))
    summary = f"{waits_text(waiters)} for {ranks_text([rank])}, which "
    seconds = rank.ending_seconds if rank.is_ending else rank.quiet_seconds
    quiet, limit = seconds_text(seconds), f"{excuse.limit_seconds:.0f} s"
    if excuse.is_learned:
        summary += f"is {rank.place} for {quiet} of at most {limit}"
        return role.verdict("clear", summary, evidence=lines)
    summary += f"{_stands(rank)} for {quiet}: not known yet whether for ever, a hang after {limit}"
    return role.verdict("insufficient evidence", summary, evidence=lines)


def _stands(rank: RankFacts) -> str:
    """As in "waits for a child process outside all stages, at upload (train.py:8),"."""
    if rank.is_ending:
        return "has closed its records and is ending"
    awaited = limits.own_wait(rank)
    does = f"waits for {awaited}" if awaited else "is"
    if not awaited and rank.is_at_work:
        does = "computes or polls"
    frame = rank.stacks.own_frame if rank.stacks is not None else None
    return f"{does} {rank.place}" + (f", at {frame}," if frame is not None else "")
