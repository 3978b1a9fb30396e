"""Judges whether a role hangs, and which ranks are at fault.

A role hangs if a rank has waited in a collective for 10 s, and a rank that has not arrived is
stopped, ended, or quiet for longer than its limit. A rank within its limit is never blamed, however
long the others wait. The limit of a stage is ``max(floor, 5 x median, 2 x longest)`` of its last
64 durations. Floors:

    10 s    a stage of a running job; 13 s until there are stacks
    45 s    a rollout or validation in which the process sleeps (10 x median, 4 x longest)
    60 s    outside all stages, or twice the longest such gap of the last hour. Until such a gap
            has been observed, the verdict is "insufficient evidence"
    300 s   outside all stages, if the stack shows a wait outside the job
    300 s   the first two steps, or the first time of a stage (10 x median): compilation, warm-up;
            60 s in a process that was older than that when it was attached
    600 s   rollout, validation, checkpoint, compilation, by the stage or by the stack
    600 s   outside all stages, if it has computed or polled since before it was attached

These are hangs too:

- all ranks have been in one collective for 30 s, or in collectives that do not match.
- ranks wait for each other in sends and receives for 30 s, or one of these does not finish. A
  chain of sends and receives ends at the rank that is blamed.
- nothing has moved in the whole run for 120 s and 10 steps.
- a rank has waited for the answer of a server (HTTP, gRPC, ZeroMQ, Ray) for 120 s, 10 steps and
  4 times the longest step; 600 s if it validates, saves or generates.

Torch's flight recorder also shows collectives that no hook has recorded: calls from C++, and jobs
that hung before they were attached. There a rank is blamed if it has issued nothing for 600 s, does
not move, and its stack shows no rollout, validation or checkpoint.

A rank "does not end" if its main thread frees its process group with the GIL held, while gloo's
thread waits for the GIL. This deadlock is a bug of torch (docs/decisions/hang.md): the main thread
joins gloo's loop in a destructor, and the loop frees tensors, for which it requests the GIL every
5 ms. No other state looks like this for long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from dfx_agent.base.text import age_text, capitalized, seconds_text
from dfx_agent.facts.rank import Arrival, Joining, RankFacts, Waiter
from dfx_agent.judge.crash.endings import has_crashed
from dfx_agent.judge.hang import sentences
from dfx_agent.judge.hang.actors import held_by_actor
from dfx_agent.judge.hang.behind import missed, suspended, suspended_verdict, unanswered
from dfx_agent.judge.hang.deadlock import deadlock
from dfx_agent.judge.hang.role import WAITING_SECONDS, Role
from dfx_agent.judge.hang.standstill import silent_alone, silent_text, standstill
from dfx_agent.judge.unfinished import Unfinished, first_unfinished
from dfx_agent.judge.words import named, ranks_text, stack_lines
from dfx_agent.snapshot import Verdict

DOES_NOT_END = "does not end"
QUIET_SECONDS = 15.0  # after this time a guest would have written stacks

_SEEN_SECONDS = 5.0
_GLOO_LOOP = "pt_gloo"  # torch calls the thread pt_gloo_runloop
_ASKS_PER_SECOND = 20.0  # a thread that waits for the GIL wakes up every 5 ms
_LATE_RECORDS_SECONDS = WAITING_SECONDS + 10.0


def hang_verdict(role: Role, quiet_seconds: float) -> Verdict:
    """The hang verdict of a role. ``quiet_seconds``: how long nothing has moved in the run."""
    waiters = [*role.waiters(), *role.device_waiters()]
    records = recorded(role)
    absent = role.absent(waiters)
    stopped = suspended(role)
    if stopped:
        return suspended_verdict(role, stopped, waiters)
    if not waiters:
        waiters, absent = waiters_of(role, records)
    has_died = any(has_crashed(rank, role.ranks) for rank in role.ranks)
    differing = [
        collective
        for collective in records
        if len(collective.kinds) > 1 and is_complete(role, collective)
    ]
    if differing and not has_died:
        return different(role, differing[0])
    if not waiters:
        return (
            held_by_actor(role, role.all_ranks, quiet_seconds)
            or unanswered(role, [])
            or _no_progress(role, quiet_seconds)
        )
    if has_died:
        return role.verdict("clear", sentences.WAIT_FOR_DEAD())
    excuses = {rank: role.excuse(rank, waiters) for rank in absent if not rank.is_blocked}
    if excuses:
        return missed(role, excuses, waiters)
    return deadlock(role, absent, waiters)


def does_not_end(role: Role, unended: list[Unended]) -> Verdict:
    """The finding on ranks that cannot exit. The other ranks have ended, or wait for them."""
    ranks, first = [stuck.rank for stuck in unended], unended[0]
    lines = [stuck.reason for stuck in unended[:4]]
    since_ns = role.now_ns - int(first.seconds * 1e9)
    found = role.found(DOES_NOT_END, str(first), ranks, lines, since_ns)
    return replace(found, action=first.action)


def _no_progress(role: Role, quiet_seconds: float) -> Verdict:
    """The verdict if no rank waits for another one."""
    state, summary = standstill(
        role.living, quiet_seconds, lambda rank: bool(role.excuse(rank).fault)
    )
    silent = silent_alone(role.living) if state == "clear" else []
    if silent:
        lines = tuple(stack_lines(silent))
        return role.verdict("insufficient evidence", silent_text(silent), evidence=lines)
    if state != "found":
        return Verdict("hang", state, role.name, summary)
    since_ns = max(rank.moved_ns for rank in role.living)
    return role.found("no progress", summary, [], [], since_ns)


def recorded(role: Role) -> list[Unfinished]:
    """Collectives that quiet ranks have waited in for 10 s by the flight recorder, oldest first."""
    quiet = [rank for rank in role.living if rank.quiet_seconds >= WAITING_SECONDS]
    records = {rank.label: rank.flight for rank in quiet if rank.flight is not None}
    return [
        collective
        for collective in first_unfinished(records)
        if _seconds_since(role, collective) >= WAITING_SECONDS
    ]


def is_complete(role: Role, unfinished: Unfinished) -> bool:
    """Whether the records of all ranks have arrived, or are overdue.

    Ranks write their records at different times. The first two records do not show which of two
    ranks differs from the others.
    """
    recorded = {*unfinished.issued, *unfinished.missing}
    is_whole = all(rank.label in recorded for rank in role.living)
    return is_whole or _seconds_since(role, unfinished) >= _LATE_RECORDS_SECONDS


def _seconds_since(role: Role, unfinished: Unfinished) -> float:
    now_seconds = role.living[0].epoch_seconds(role.now_ns)
    return now_seconds - unfinished.begin_ns / 1e9


def waiters_of(role: Role, found: list[Unfinished]) -> tuple[list[Waiter], list[RankFacts]]:
    """(waiting ranks, missing ranks) from the flight recorder, for a job that was attached late."""
    collective = next((collective for collective in found if collective.missing), None)
    if collective is None:
        return [], []
    begin_ns = role.now_ns - int(_seconds_since(role, collective) * 1e9)
    by_label = {rank.label: rank for rank in role.living}
    waiters = [
        Waiter(
            by_label[label],
            Arrival(entry.operation, collective.group, collective.sequence, begin_ns),
        )
        for label, entry in collective.issued.items()
        if entry is not None and not entry.is_finished
    ]
    return waiters, [by_label[label] for label in collective.missing]


def different(role: Role, unfinished: Unfinished) -> Verdict:
    """The finding if ranks issued different collectives with one sequence number.

    Ranks with the rarest call are blamed, or all ranks on a tie.
    """
    calls = unfinished.calls()
    fewest = min(len(labels) for labels, _ in calls)
    odd = {label for labels, _ in calls if len(labels) == fewest for label in labels}
    ranks_named = named(role.ranks)
    exact = [f"{ranks_named(labels)} called {call}" for labels, call in calls]
    short = [text.partition("@")[0] for text in exact]
    names = {call.partition("@")[0] for _, call in calls}
    text = " while ".join(short if len(names) == len(calls) else exact)
    seconds = _seconds_since(role, unfinished)
    return role.found(
        "mismatched collectives",
        sentences.MISMATCHED(age=age_text(seconds), calls=text),
        [rank for rank in role.ranks if rank.label in odd],
        exact,
        role.now_ns - int(seconds * 1e9),
    )


class Unended(NamedTuple):
    """A rank that cannot exit because of the deadlock with gloo's thread."""

    rank: RankFacts
    joining: Joining

    @property
    def seconds(self) -> float:
        """Time since the rank last moved."""
        return self.rank.quiet_seconds

    def __str__(self) -> str:
        return sentences.DOES_NOT_END(
            ranks=capitalized(ranks_text([self.rank])), duration=seconds_text(self.seconds)
        )

    @property
    def action(self) -> str:
        """The command that ends the process."""
        return sentences.DOES_NOT_END.action_text(command=f"kill -9 {self.rank.pid}")

    @property
    def reason(self) -> str:
        """Evidence of the deadlock."""
        loop, _, asks_per_second = self.joining
        return (
            f"pid {self.rank.pid}: its main thread waits for {loop} to end and holds Python's "
            f"lock, which {loop} asks for {asks_per_second:.0f} times a second; seen with torch "
            "2.13 and gloo, not caused by the job's own code"
        )


def unended(ranks: Iterable[RankFacts]) -> list[Unended]:
    """Ranks that cannot exit, the longest first."""
    found = [
        Unended(rank, rank.joining)
        for rank in ranks
        if rank.joining is not None and _does_not_end(rank)
    ]
    return sorted(found, key=lambda stuck: -stuck.seconds)


def _does_not_end(rank: RankFacts) -> bool:
    joining = rank.joining
    if joining is None or not joining.thread.startswith(_GLOO_LOOP):
        return False
    is_quiet = rank.quiet_seconds >= QUIET_SECONDS and rank.state == "live" and not rank.arrivals
    is_seen = joining.seconds >= _SEEN_SECONDS and joining.asks_per_second >= _ASKS_PER_SECOND
    return is_quiet and is_seen and rank.stacks is None and not rank.is_stopped
