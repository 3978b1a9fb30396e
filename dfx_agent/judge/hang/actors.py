"""Finds the Ray actor that delays the job, where no rank waits in a collective.

A driver calls a method of each actor and waits for the results. If one actor is still in its method
while other actors are idle, this actor is reported. Idle actors wait for their next call and are
never reported. Processes that wait for actors are not reported either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.rank import IDLE, RankFacts, Waiter
from dfx_agent.facts.stacks import RAY_OBJECT, client_of
from dfx_agent.judge.hang import limits, sentences
from dfx_agent.judge.hang.limits import Excuse
from dfx_agent.judge.hang.role import Role
from dfx_agent.judge.hang.words import place_text
from dfx_agent.judge.words import calls_text, have_text, ranks_text, waits_text
from dfx_agent.snapshot import Verdict

_FLOOR_SECONDS = 30.0  # higher than in a collective, because the evidence is weaker
_UNUSUAL_SECONDS = 60.0
_ENOUGH_DURATIONS = 3


def is_idle(rank: RankFacts) -> bool:
    """Whether the rank is an actor that waits for its next method call."""
    return rank.stacks is not None and rank.stacks.is_idle_actor


def waits_for_actors(rank: RankFacts) -> bool:
    """Whether the main thread is blocked in ``ray.get``, ``ray.wait`` or a similar call."""
    return rank.stacks is not None and client_of(rank.stacks) == RAY_OBJECT


def held_by_actor(
    role: Role, all_ranks: Sequence[RankFacts], quiet_seconds: float
) -> Verdict | None:
    """The verdict on the actor of this role that the driver waits for; None if no actor differs.

    ``all_ranks``: ranks of all roles. ``quiet_seconds``: how long nothing has moved in the run.
    """
    busy = [rank for rank in role.living if _is_busy(rank)]
    num_idle = sum(map(is_idle, role.living))
    drivers = [rank for rank in all_ranks if _is_driver(rank) and rank.stacks is not None]
    has_waiter = any(map(waits_for_actors, all_ranks)) or not drivers
    if not busy or not has_waiter:
        return None
    excuses = {rank: _with_floor(role.excuse(rank)) for rank in busy}
    late = [rank for rank in busy if rank.quiet_seconds >= excuses[rank].limit_seconds]
    ranks = [rank for rank in late if _has_ended_before(rank)] or late
    others = [rank for rank in all_ranks if _is_busy(rank)]
    is_one = num_idle > 0 or len(others) == 1 or any(map(_has_ended_before, ranks))
    if ranks and is_one and quiet_seconds >= _FLOOR_SECONDS:
        return _found(role, ranks, excuses, has_idle=num_idle > 0)
    unusual = [rank for rank in busy if _is_unusual(rank)]
    return _not_sure(role, unusual[0], excuses[unusual[0]]) if unusual else None


def not_called(role: Role, idle: list[RankFacts], waiters: list[Waiter]) -> Verdict:
    """The verdict if ranks wait in a collective for actors whose methods were not called."""
    seconds = role.age_seconds(waiters)
    summary = sentences.NOT_CALLED(
        waiting=capitalized(calls_text(waiters)),
        ranks=ranks_text(idle),
        age=seconds_text(seconds),
    )
    if seconds < limits.UNMARKED_FLOOR_SECONDS:
        return role.verdict("insufficient evidence", summary)
    lines = [waits_text(waiters)]
    found = role.found("not called", summary, [], lines, role.now_ns - int(seconds * 1e9))
    return replace(found, action=sentences.NOT_CALLED.action)


def _is_driver(rank: RankFacts) -> bool:
    return rank.is_living and not rank.is_ray_worker


def _is_busy(rank: RankFacts) -> bool:
    """Whether a method of this actor has not returned, and it waits for no process of the job."""
    is_known = rank.is_living and rank.is_ray_worker and rank.stacks is not None
    return is_known and not (is_idle(rank) or waits_for_actors(rank) or rank.arrivals)


def _has_ended_before(rank: RankFacts) -> bool:
    """Whether the present method of the actor has ended at least 3 times before."""
    durations = rank.stage_durations.get(rank.stage, ())
    return rank.stage != IDLE and len(durations) >= _ENOUGH_DURATIONS


def _is_unusual(rank: RankFacts) -> bool:
    if not _has_ended_before(rank):
        return rank.quiet_seconds >= _UNUSUAL_SECONDS
    durations = rank.stage_durations[rank.stage]
    usual_seconds = max(2 * max(durations), 5 * median(durations)) / 1e9
    return rank.quiet_seconds >= max(limits.NO_STACKS_FLOOR_SECONDS, usual_seconds)


def _with_floor(excuse: Excuse) -> Excuse:
    return excuse._replace(limit_seconds=max(excuse.limit_seconds, _FLOOR_SECONDS))


def _found(
    role: Role, ranks: list[RankFacts], excuses: dict[RankFacts, Excuse], *, has_idle: bool
) -> Verdict:
    first = max(ranks, key=lambda rank: rank.quiet_seconds)
    sentence = sentences.BUSY_AMONG_IDLE if has_idle else sentences.BUSY_FOR_DRIVER
    summary = sentence(
        ranks=capitalized(have_text(ranks)),
        place=place_text(first),
        duration=seconds_text(first.quiet_seconds),
    )
    lines = [f"{ranks_text([rank])}: {excuses[rank].reason}" for rank in ranks[:4]]
    lines += _idle_lines(role.living)
    return role.found(limits.STUCK, summary, ranks, lines, first.moved_ns)


def _idle_lines(ranks: Iterable[RankFacts]) -> list[str]:
    idle = list(filter(is_idle, ranks))
    return [f"{ranks_text(idle)}: idle in Ray's main_loop"] if idle else []


def _not_sure(role: Role, rank: RankFacts, excuse: Excuse) -> Verdict:
    summary = sentences.BUSY_NOT_SURE(
        ranks=capitalized(have_text([rank])),
        place=place_text(rank),
        duration=seconds_text(rank.quiet_seconds),
        limit=f"{excuse.limit_seconds:.0f} s",
    )
    limit = excuse.limit_seconds
    return role.suspicion(rank, rank.quiet_seconds, limit, summary, (excuse.reason,))
