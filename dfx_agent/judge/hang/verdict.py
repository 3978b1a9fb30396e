"""Whether a role hangs and who is to blame.

The sign of a hang is a rank that waits in a collective or barrier for 10 s while another one has
not arrived, and that one is stopped, or quiet beyond what its stage normally takes, or gone. Who
works within its limit is not to blame, however long the others wait: limits are learned per stage,
``max(floor, 5 x median, 2 x longest of the last 64)``, with these floors:

    10 s    a stage of a running job, with stacks since its last move; 13 s while there are none
    60 s    outside every stage: it may save or evaluate, untold; 300 s where its stack shows a wait
            outside the job; 600 s where it computes or polls since before its guest came. What
            was not seen before is "insufficient evidence" meanwhile
    300 s   the first two steps, a stage never seen before (10 x median): compilation, warm-up;
            60 s in a process that was older than that when its guest came
            twice the longest that any rank was outside stages, or waited, in the last hour
    600 s   rollout, validation, checkpoint, compilation: by stage or by what the stack shows; but
            45 s, 10 x median, 4 x longest in a rollout or validation in which the process sleeps

Everybody in one collective for 30 s, or in collectives that do not match, is a hang too; so are
ranks that wait for each other in sends or receives for 30 s, and both ends of one that does not
finish; and a whole run in which nothing has moved for 120 s and 10 steps. A send or receive waits
for the one rank that it names: who is stuck behind a chain of them is at its end.

A rank whose stack shows that it waits for a server's answer (HTTP, gRPC, ZeroMQ, Ray) is named
after 120 s, 10 steps and 4 times the longest one, whether others wait for it or not; after 600 s
where it validates, saves or generates.

A rank whose main thread frees its process group with the GIL held while gloo's own thread asks for
it does not end.

Torch's flight recorder, which guests write when they stand still, shows different collectives under
one number also where no hook saw them: in C++, and in a job that hung before the guest came. There
a rank that has issued nothing for 600 s, stands still, and whose stack shows no rollout, validation
or checkpoint, is to blame at once.

That deadlock is torch's own, with or without a guest (docs/decisions/hang.md):
the main thread joins gloo's loop in a destructor, that loop frees tensors and asks for the GIL
every 5 ms. Nothing else has this shape for long: a job that saves, evaluates or sleeps joins no
thread of gloo, and a guest can write stacks meanwhile, which it cannot while the GIL is held.
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
QUIET_SECONDS = 15.0  # by then a guest would have written stacks

_SEEN_SECONDS = 5.0
_GLOO_LOOP = "pt_gloo"  # pt_gloo_runloop: torch names its thread so
_ASKS_PER_SECOND = 20.0  # who waits for the GIL wakes up every 5 ms
_LATE_RECORDS_SECONDS = WAITING_SECONDS + 10.0


def hang_verdict(role: Role, quiet_seconds: float) -> Verdict:
    """``quiet_seconds``: how long nothing has moved in the whole run."""
    waiters = [*role.waiters(), *role.silent_waiters()]
    records = recorded(role)
    absent = role.absent(waiters)
    stopped = suspended(role)
    if stopped:
        return suspended_verdict(role, stopped, waiters)
    if not waiters:
        waiters, absent = waiters_of(role, records)
    has_died = any(has_crashed(rank, role.ranks) for rank in role.ranks)
    differing = [one for one in records if len(one.kinds) > 1 and is_complete(role, one)]
    if differing and not has_died:
        return different(role, differing[0])
    if not waiters:
        return (
            held_by_actor(role, role.everybody, quiet_seconds)
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
    """Ranks that cannot leave; the others have ended, or wait for them."""
    ranks, first = [each.rank for each in unended], unended[0]
    lines = [each.reason for each in unended[:4]]
    since_ns = role.now_ns - int(first.seconds * 1e9)
    found = role.found(DOES_NOT_END, str(first), ranks, lines, since_ns)
    return replace(found, action=first.action)


def _no_progress(role: Role, quiet_seconds: float) -> Verdict:
    """A run in which nothing moves anywhere, outside rollout, validation and checkpoint."""
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


class Unended(NamedTuple):
    """A rank in that deadlock."""

    rank: RankFacts
    joining: Joining

    @property
    def seconds(self) -> float:
        """Since it last moved."""
        return self.rank.quiet_seconds

    def __str__(self) -> str:
        return sentences.DOES_NOT_END(
            ranks=capitalized(ranks_text([self.rank])), duration=seconds_text(self.seconds)
        )

    @property
    def action(self) -> str:
        """What ends it."""
        return sentences.DOES_NOT_END.action_text(command=f"kill -9 {self.rank.pid}")

    @property
    def reason(self) -> str:
        loop, _, asks_per_second = self.joining
        return (
            f"pid {self.rank.pid}: its main thread waits for {loop} to end and holds Python's "
            f"lock, which {loop} asks for {asks_per_second:.0f} times a second; seen with torch "
            "2.13 and gloo, not caused by the job's own code"
        )


def unended(ranks: Iterable[RankFacts]) -> list[Unended]:
    """Those of a role, the longest first."""
    found = [Unended(r, r.joining) for r in ranks if r.joining is not None and _does_not_end(r)]
    return sorted(found, key=lambda each: -each.seconds)


def _does_not_end(rank: RankFacts) -> bool:
    joining = rank.joining
    if joining is None or not joining.thread.startswith(_GLOO_LOOP):
        return False
    is_quiet = rank.quiet_seconds >= QUIET_SECONDS and rank.state == "live" and not rank.arrivals
    is_seen = joining.seconds >= _SEEN_SECONDS and joining.asks_per_second >= _ASKS_PER_SECOND
    return is_quiet and is_seen and rank.stacks is None and not rank.is_stopped
