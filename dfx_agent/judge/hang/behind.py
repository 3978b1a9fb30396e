"""Judges the ranks that others wait for: at fault, still at work, or waiting for a server.

The guest or the stack of the main thread shows that a rank waits for the answer of a server.
A trainer fetches rollouts over HTTP, ZeroMQ or gRPC. If the server stops answering, the trainer is
blocked, although no other rank waits for it. An answer arrives within a step, so the usual duration
of a step limits how long an answer may take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.rank import RankFacts, Waiter
from dfx_agent.facts.stacks import RAY_OBJECT, Frame, ProcessStacks, client_of
from dfx_agent.judge.hang import limits, sentences
from dfx_agent.judge.hang.actors import is_idle, not_called
from dfx_agent.judge.hang.limits import Excuse
from dfx_agent.judge.hang.role import Role
from dfx_agent.judge.hang.words import does_text, place_text, where_text
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

SUSPENDED_SECONDS = 8.0  # a debugger or a profiler stops a process for a shorter time
FLOOR_SECONDS = 120.0
LONG_FLOOR_SECONDS = 600.0

_FEWEST_STEPS = 3
_TIMES_MEDIAN, _TIMES_LONGEST = 10, 4


def missed(role: Role, excuses: Mapping[RankFacts, Excuse], waiters: list[Waiter]) -> Verdict:
    """The verdict on ranks that other ranks wait for. ``excuses``: those that have not arrived."""
    idle = [rank for rank in excuses if is_idle(rank) and excuses[rank].fault != limits.STOPPED]
    excuses = {rank: excuse for rank, excuse in excuses.items() if rank not in idle}
    if not excuses:
        return not_called(role, idle, waiters)
    faults = {excuse.fault for excuse in excuses.values()} - {""}
    server = None if faults - {limits.STUCK} else unanswered(role, waiters)
    if server is not None:
        return server
    judge = _at_fault if faults else _at_work
    return judge(role, excuses, waiters)


def _at_fault(role: Role, excuses: Mapping[RankFacts, Excuse], waiters: list[Waiter]) -> Verdict:
    """The finding on ranks at fault. A stopped rank explains a stuck one, but not vice versa."""
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
    """Waiters that are not at fault, or ranks that have just arrived if there are none."""
    others = [waiter for waiter in waiters if waiter.rank not in ranks]
    living = (rank for rank in role.living if rank not in ranks)
    return others or [Waiter(rank, arrival) for rank in living for arrival in rank.arrivals]


def _fault_text(cause: str, ranks: list[RankFacts]) -> str:
    """The headline about the ranks at fault."""
    first = ranks[0]
    names = capitalized(ranks_text(ranks))
    have = capitalized(have_text(ranks))
    duration = seconds_text(first.idle_seconds)
    if cause == limits.LEFT and any(rank.is_ending for rank in ranks):
        return sentences.NOT_ENDING(ranks=names, duration=seconds_text(first.ending_seconds))
    if cause == limits.LEFT:
        return sentences.LEFT(ranks=names, duration=duration, place=place_text(first))
    if cause == limits.STOPPED:
        duration = seconds_text(suspended_seconds(first))
        return sentences.SUSPENDED(ranks=have, duration=duration, place=where_text(first))
    return sentences.STUCK(ranks=have, duration=duration, place=place_text(first))


def unanswered(role: Role, waiters: list[Waiter]) -> Verdict | None:
    """The finding on ranks whose server does not answer, whether other ranks wait or not."""
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
    """A rank that waits for actors is not to blame; the actors are judged separately."""
    return role.verdict("insufficient evidence", str(wait), evidence=(wait.reason,))


def _at_work(role: Role, excuses: Mapping[RankFacts, Excuse], waiters: list[Waiter]) -> Verdict:
    rank, excuse = min(excuses.items(), key=lambda item: item[1].is_learned)
    lines = (
        excuse.reason, waits_text(waiters), *flight_lines(role.ranks), *stack_lines(role.ranks)
    )  # fmt: skip
    seconds = rank.ending_seconds if rank.is_ending else rank.quiet_seconds
    fields = {
        "waiting": capitalized(calls_text(waiters)),
        "ranks": ranks_text([rank]),
        "does": does_text(rank),
        "place": place_text(rank),
        "duration": seconds_text(seconds),
        "limit": f"{excuse.limit_seconds:.0f} s",
    }
    if excuse.is_learned:
        return role.verdict("clear", sentences.STILL_AT_WORK(**fields), evidence=lines)
    sentence = sentences.SHUTTING_DOWN if rank.is_ending else sentences.NOT_SURE
    return role.suspicion(rank, seconds, excuse.limit_seconds, sentence(**fields), lines)


class RemoteWait(NamedTuple):
    """A rank that has waited too long for an answer."""

    rank: RankFacts
    answer: str
    """What it waits for, as in "an HTTP answer"."""
    seconds: float
    """How long it has waited."""
    usual_seconds: float
    """Usual duration of a step."""
    place: Frame | None
    """The line of the job's code that waits."""
    reason: str
    """Evidence: why this is too long."""

    @property
    def is_for_actors(self) -> bool:
        """Whether the rank waits for Ray actors, which are processes of the job."""
        return self.answer == RAY_OBJECT

    def __str__(self) -> str:
        return sentences.NO_ANSWER(
            ranks=capitalized(have_text([self.rank])),
            answer=self.answer,
            duration=seconds_text(self.seconds),
            at="" if self.place is None else f", at {self.place}",
            usual=f"{self.usual_seconds:.3g} s",
        )


def overdue(ranks: Sequence[RankFacts]) -> list[RemoteWait]:
    """Waits of ranks of one role that have lasted too long, the longest first."""
    found = [wait for rank in ranks if (wait := _overdue(rank, ranks)) is not None]
    return sorted(found, key=lambda wait: -wait.seconds)


def _overdue(rank: RankFacts, ranks: Sequence[RankFacts]) -> RemoteWait | None:
    seconds = _seconds(rank)
    if seconds < FLOOR_SECONDS or rank.arrivals or not rank.is_living:
        return None
    if len(rank.step_durations) < _FEWEST_STEPS:
        return None
    stacks, is_stopped = rank.stacks, rank.is_stopped
    answer = "" if is_stopped else _answer(rank, stacks)
    if not answer:
        return None
    is_long = stacks is not None and stacks.is_long_function()
    floor = LONG_FLOOR_SECONDS if is_long else FLOOR_SECONDS
    steps = [ns / 1e9 for other in ranks for ns in other.step_durations]
    limit = max(floor, _TIMES_MEDIAN * median(steps), _TIMES_LONGEST * max(steps))
    if seconds < limit:
        return None
    usual = f"a step takes {median(steps):.3g} s (median of {len(steps)}, longest {max(steps):.3g})"
    reason = f"{ranks_text([rank])}: {usual}, an answer may take {limit:.0f} s"
    place = stacks.own_frame if stacks is not None else None
    return RemoteWait(rank, answer, seconds, median(steps), place, reason)


def _seconds(rank: RankFacts) -> float:
    """Time since the request was sent, or since the last record if that is unknown."""
    asks_since_ns = rank.asks_since_ns
    quiet_seconds = rank.quiet_seconds
    if asks_since_ns is None:
        return quiet_seconds
    return min(quiet_seconds, (rank.now_ns - asks_since_ns) / 1e9)


def _answer(rank: RankFacts, stacks: ProcessStacks | None) -> str:
    """What the rank waits for; "" if it waits for no server. The stack names the client."""
    client = client_of(stacks) if stacks is not None else ""
    return client or ("a server's answer" if rank.asks_since_ns is not None else "")


def suspended(role: Role) -> list[RankFacts]:
    """Living ranks that have been suspended (state T), whether other ranks wait or not."""
    return [rank for rank in role.living if rank.is_stopped and _is_long(rank)]


def _is_long(rank: RankFacts) -> bool:
    is_quiet = rank.quiet_seconds >= limits.FLOOR_SECONDS
    return is_quiet and suspended_seconds(rank) >= SUSPENDED_SECONDS


def suspended_seconds(rank: RankFacts) -> float:
    """Time since the rank was first found suspended. Its last record may be much older."""
    stopped_seconds = rank.stopped_seconds
    if stopped_seconds is None:
        return rank.quiet_seconds
    return min(stopped_seconds, rank.quiet_seconds)


def suspended_verdict(role: Role, ranks: list[RankFacts], waiters: list[Waiter]) -> Verdict:
    """The finding on suspended ranks, with the command that resumes them."""
    seconds = max(map(suspended_seconds, ranks))
    others = [waiter for waiter in waiters if waiter.rank not in ranks]
    summary = sentences.SUSPENDED(
        ranks=capitalized(have_text(ranks)),
        duration=seconds_text(seconds),
        place=where_text(ranks[0]),
    )
    if others:
        age = seconds_text(role.age_seconds(others))
        summary += " " + sentences.THEY_WAIT(waiting=capitalized(calls_text(others)), age=age)
    command = " ".join(["kill -CONT", *(str(rank.pid) for rank in ranks)])
    lines = [
        f"pid {rank.pid} is stopped (state T); resume it with kill -CONT {rank.pid}"
        for rank in ranks[:4]
    ]
    lines += [waits_text(others)] if others else []
    verdict = role.found(limits.STOPPED, summary, ranks, lines, role.now_ns - int(seconds * 1e9))
    action = sentences.SUSPENDED.action_text(command=command)
    return replace(verdict, action=action)
