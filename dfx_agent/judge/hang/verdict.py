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
it does not end (see unended.py).

Torch's flight recorder, which guests write when they stand still, shows different collectives under
one number also where no hook saw them: in C++, and in a job that hung before the guest came. There
a rank that has issued nothing for 600 s, stands still, and whose stack shows no rollout, validation
or checkpoint, is to blame at once.
"""

from __future__ import annotations

from dataclasses import replace

from dfx_agent.judge.crash.endings import has_crashed
from dfx_agent.judge.hang import sentences
from dfx_agent.judge.hang.actors import held_by_actor
from dfx_agent.judge.hang.behind import missed, unanswered
from dfx_agent.judge.hang.deadlock import deadlock
from dfx_agent.judge.hang.recorded import different, is_complete, recorded, waiters_of
from dfx_agent.judge.hang.role import Role
from dfx_agent.judge.hang.standstill import silent_alone, silent_text, standstill
from dfx_agent.judge.hang.suspended import suspended, suspended_verdict
from dfx_agent.judge.hang.unended import CAUSE as DOES_NOT_END
from dfx_agent.judge.hang.unended import Unended
from dfx_agent.judge.words import stack_lines
from dfx_agent.snapshot import Verdict


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
