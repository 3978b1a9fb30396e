"""Recognizes ends that are no crash: actors that Ray ended, and drivers that lost an actor.

When a driver has ended, Ray ends its actors with exit code 0 or 1, by SIGTERM or by SIGKILL. The
log of an actor says so if there was time to write it. When an actor dies, the next ``ray.get`` of
the driver fails, and the error contains the pid of the actor.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from dfx_agent.base.text import capitalized
from dfx_agent.facts.rank import ExitStatus, RankFacts
from dfx_agent.judge.crash.endings import endings_text, failure_of, has_crashed, lost_peer
from dfx_agent.judge.crash.sentences import (
    DRIVER_LOST_ACTOR,
    ENDED_ON_PURPOSE,
    ENDED_WITH_DRIVER,
    ENDED_WITH_RAY,
)
from dfx_agent.judge.words import ranks_text
from dfx_agent.snapshot import Verdict

_BEFORE_SECONDS = 60.0  # Ray waits for running tasks, and the agent notices an end later
_LOSS_OF_ACTOR = re.compile(
    r"\b(ActorDied|ActorUnavailable|RayActor|WorkerCrashed|NodeDied)Error\b"
    r"|\bThe actor (is dead|died)"
)
_PID = re.compile(r"\bpid: (\d+)\b")


def no_crash(
    role: str, ranks: Sequence[RankFacts], all_ranks: Sequence[RankFacts]
) -> Verdict | None:
    """The crash verdict if Ray explains the ends of these ranks (all of a role), else None.

    It is "insufficient evidence" if all of them ended together and no driver was observed.
    """
    died = [rank for rank in ranks if rank.gone_ns is not None]
    drivers = [rank for rank in all_ranks if rank.gone_ns is not None and not rank.is_ray_worker]
    if not died:
        return None
    if all(_is_ended_by_ray(rank, drivers) for rank in died):
        return _ended_by_ray(role, died, drivers)
    if all(rank.is_ray_worker for rank in all_ranks):
        return _with_unseen_driver(role, died, all_ranks)
    return _lost_actor(role, died, all_ranks)


def not_ended_by_ray(
    ranks: Sequence[RankFacts], all_ranks: Sequence[RankFacts]
) -> Sequence[RankFacts]:
    """Ranks that Ray did not end, for the crash verdict; all ranks if Ray ended all."""
    drivers = [rank for rank in all_ranks if rank.gone_ns is not None and not rank.is_ray_worker]
    return [rank for rank in ranks if not _is_ended_by_ray(rank, drivers)] or ranks


def _ended_by_ray(role: str, died: Sequence[RankFacts], drivers: Sequence[RankFacts]) -> Verdict:
    if not drivers:
        summary = ENDED_ON_PURPOSE(ranks=ranks_text(died))
    else:
        driver = capitalized(ranks_text(drivers[:1]))
        summary = ENDED_WITH_DRIVER(driver=driver, ranks=ranks_text(died))
    return Verdict("crash", "clear", role, summary)


def _with_unseen_driver(
    role: str, died: Sequence[RankFacts], all_ranks: Sequence[RankFacts]
) -> Verdict | None:
    is_by_ray = all(_may_be_by_ray(rank.exit_status) and not rank.was_oom_killed for rank in died)
    first_ns = min(rank.gone_ns or rank.now_ns for rank in died)
    is_together = all(rank.gone_ns and (rank.alive_ns or 0) <= first_ns for rank in all_ranks)
    if not is_by_ray or not is_together or len(all_ranks) == 1:
        return None
    summary = ENDED_WITH_RAY(ranks=capitalized(ranks_text(died)))
    return Verdict("crash", "insufficient evidence", role, summary)


def _lost_actor(
    role: str, died: Sequence[RankFacts], all_ranks: Sequence[RankFacts]
) -> Verdict | None:
    """The verdict "clear" if these are drivers that failed because an actor had crashed."""
    if any(rank.is_ray_worker or not _has_lost_actor(rank) for rank in died):
        return None
    own = not_ended_by_ray(all_ranks, all_ranks)
    actors = [rank for rank in own if rank.is_ray_worker and has_crashed(rank, own)]
    if not actors:
        return None
    summary = DRIVER_LOST_ACTOR(
        driver=capitalized(ranks_text(died)),
        ranks=ranks_text(actors),
        ending=endings_text(actors),
    )
    return Verdict("crash", "clear", role, summary)


def _has_lost_actor(driver: RankFacts) -> bool:
    """Whether the driver failed because an actor, or a peer of an actor, had ended."""
    failure = failure_of(driver)
    if failure is None:
        return False
    text = f"{failure.type}: {failure.message}"
    return bool(_LOSS_OF_ACTOR.search(text)) or lost_peer(driver)


def _is_ended_by_ray(rank: RankFacts, drivers: Sequence[RankFacts]) -> bool:
    """Whether Ray ended this rank: by its log, or by the way and time of its end."""
    if rank.was_ended_by_ray:
        return True
    if not rank.is_ray_worker or rank.was_oom_killed or not _may_be_by_ray(rank.exit_status):
        return False
    lost = list(filter(_has_lost_actor, drivers))
    is_killed = rank.exit_status is not None and rank.exit_status.signal == signal.SIGKILL
    if (lost and is_killed) or any(_names(driver, rank) for driver in lost):
        return False
    return any(_ended_before(driver, rank) for driver in drivers)


def _names(driver: RankFacts, rank: RankFacts) -> bool:
    """Whether the driver failed with the pid of this actor."""
    failure = failure_of(driver)
    return failure is not None and str(rank.pid) in _PID.findall(failure.message)


def _may_be_by_ray(status: ExitStatus | None) -> bool:
    """Whether Ray ends workers with this status."""
    if status is None or status.was_asked_for or status.signal == signal.SIGKILL:
        return True
    return status.signal is None and status.code in {0, 1}


def _ended_before(driver: RankFacts, rank: RankFacts) -> bool:
    """Whether the driver ended shortly before the rank.

    A driver also fails because an actor was killed, so the interval of its death matters.
    """
    if driver.gone_ns is None or rank.gone_ns is None:
        return False
    is_killed = rank.exit_status is not None and rank.exit_status.signal == signal.SIGKILL
    ended_well = driver.exit_status is None or driver.exit_status.is_success
    at_ns = driver.gone_ns if is_killed and not ended_well else driver.alive_ns or driver.gone_ns
    return 0 <= rank.gone_ns - at_ns <= _BEFORE_SECONDS * 1e9
