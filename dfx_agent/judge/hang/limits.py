"""How long a rank may be quiet before it is at fault, learned from earlier durations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from statistics import median
from typing import NamedTuple

from dfx_agent.base.text import age_text
from dfx_agent.facts.rank import IDLE, RankFacts
from dfx_agent.facts.stacks import client_of, own_wait_of
from dfx_agent.judge.crash.endings import ENDING_SECONDS
from dfx_agent.judge.straggler.busy_host import LEAST_SHARE

FLOOR_SECONDS = 10.0
NO_STACKS_FLOOR_SECONDS = 13.0
UNMARKED_FLOOR_SECONDS = 60.0
OWN_WAIT_FLOOR_SECONDS = 300.0  # waits for a child process, a queue, a copy or an upload
AT_WORK_SECONDS = 300.0  # computes or polls in code without a stage: not blocked
FIRST_FLOOR_SECONDS = 300.0
LONG_FLOOR_SECONDS = 600.0
SLEEPING_FLOOR_SECONDS = 45.0  # asleep in a rollout: a tool or an environment can be slow

STOPPED, LEFT, STUCK = "stopped", "left", "stuck"
FAULTS = {STOPPED: "stopped", LEFT: "ended, and had been", STUCK: "stuck"}

_STACKS_DUE_SECONDS = 15.0  # after this time a quiet guest has written its stacks
_FIRST_STEPS, _FIRST_DURATIONS = 2, 3
_LONG_STAGE = re.compile(r"_*(rollout|generat|valid|eval|test|checkpoint|ckpt|save)", re.IGNORECASE)
# stages that compute; a checkpoint may sleep for a long time on a slow disk
_COMPUTING_STAGE = re.compile(r"_*(rollout|generat|valid|eval|test)", re.IGNORECASE)
_ENOUGH_DURATIONS = 8
_REMEMBERED_SECONDS = 3600.0


class Excuse(NamedTuple):
    """Whether a rank that has not arrived may still be at work."""

    fault: str
    """One of ``FAULTS`` (worst first); "" while the rank is within its limit."""
    limit_seconds: float
    """How long the rank may be quiet."""
    reason: str
    """Evidence: where the limit comes from."""
    is_learned: bool = True
    """Whether the limit comes from earlier durations or from the kind of stage.

    Outside all stages only twice the longest earlier gap counts as learned.
    """


class Habits:
    """Earlier durations of all ranks of a role, computed once."""

    def __init__(self, ranks: Sequence[RankFacts]) -> None:
        self._ranks = ranks
        self._stages: dict[str, list[float]] = {}

    @cached_property
    def gap_seconds(self) -> float:
        """The longest time that any rank was outside all stages, or waited."""
        return max(rank.longest_gap_seconds for rank in self._ranks)

    @cached_property
    def num_steps(self) -> int | None:
        """Steps of the rank that has completed most; None if no rank counts steps."""
        if all(rank.step is None for rank in self._ranks):
            return None
        return max(rank.num_steps for rank in self._ranks)

    def durations(self, stage: str) -> list[float]:
        """Durations of a stage in seconds, ascending."""
        if stage not in self._stages:
            durations_ns = [
                ns for rank in self._ranks for ns in rank.stage_durations.get(stage, ())
            ]
            self._stages[stage] = [ns / 1e9 for ns in sorted(durations_ns)]
        return self._stages[stage]


def excuse(rank: RankFacts, habits: Habits) -> Excuse:
    """Judge one rank by its state and by the earlier durations of its role."""
    if not rank.is_living:
        return _ended(rank)
    stacks, is_stopped = rank.stacks, rank.is_stopped
    quiet = rank.quiet_seconds
    if is_stopped and quiet >= FLOOR_SECONDS:
        pid = rank.pid
        return Excuse(
            STOPPED, 0.0, f"pid {pid} is stopped (state T); resume it with kill -CONT {pid}"
        )
    is_long = _is_long(rank)
    idle_seconds = rank.idle_seconds
    is_blocked = stacks is not None and not is_long and not rank.is_at_work
    gap_seconds = habits.gap_seconds
    if quiet < idle_seconds >= max(LONG_FLOOR_SECONDS, 2 * gap_seconds) and is_blocked:
        ago = f"has issued no collective for {age_text(idle_seconds)}"
        return Excuse(STUCK, LONG_FLOOR_SECONDS, f"{ago}, by torch's flight recorder")
    gap_seconds = gap_seconds if rank.stage == IDLE else 0.0
    excuse = _within(rank, habits, gap_seconds, is_long=is_long)
    excuse = _by_processor_time(excuse, rank.processor_share)
    excuse = _while_active(excuse, rank)
    return excuse._replace(fault=STUCK) if quiet >= excuse.limit_seconds else excuse


def _while_active(excuse: Excuse, rank: RankFacts) -> Excuse:
    """Raise the limit of a process that is active: its work may take longer than usual."""
    if rank.stage == IDLE and rank.is_at_work:
        least, who, is_learned = AT_WORK_SECONDS, "it is at work", excuse.is_learned
    elif rank.others_moved_ns and rank.now_ns - rank.others_moved_ns < FLOOR_SECONDS * 1e9:
        least, who, is_learned = UNMARKED_FLOOR_SECONDS, "another thread of it is active", False
    else:
        return excuse
    limit = max(excuse.limit_seconds, least)
    reason = f"{excuse.reason}; {who}: {limit:.0f} s"
    return excuse._replace(limit_seconds=limit, reason=reason, is_learned=is_learned)


def _is_long(rank: RankFacts) -> bool:
    """Whether the rank saves, validates, generates, compiles or waits for a server."""
    if any(map(_LONG_STAGE.match, rank.stages)) or rank.asks_since_ns is not None:
        return True
    stacks = rank.stacks
    if stacks is None:
        return False
    if stacks.is_in_long_code() or client_of(stacks):
        return True
    # the caller of a blocking function is not at work, as `rollout` that is blocked in `read`
    return stacks.is_named_long_inside() if rank.is_idle else stacks.is_named_long()


def _long_floor(rank: RankFacts, num_durations: int) -> float:
    """The floor for long work. The name of a function is weaker evidence than known durations."""
    stacks, by_stage = rank.stacks, any(map(_LONG_STAGE.match, rank.stages))
    is_known = rank.stage != IDLE and num_durations >= _ENOUGH_DURATIONS and not by_stage
    if not is_known or stacks is None or rank.asks_since_ns is not None:
        return LONG_FLOOR_SECONDS
    is_sure = stacks.is_in_long_code() or client_of(stacks)
    return LONG_FLOOR_SECONDS if is_sure else UNMARKED_FLOOR_SECONDS


def _ended(rank: RankFacts) -> Excuse:
    """The excuse of an ended rank. A closed segment alone is no end: exit handlers close it too."""
    if rank.is_ending:
        fault = LEFT if rank.ending_seconds >= ENDING_SECONDS else ""
        ago = age_text(rank.ending_seconds)
        reason = f"closed its records {ago} ago, and pid {rank.pid} is still there"
        return Excuse(fault, ENDING_SECONDS, reason, is_learned=False)
    status = rank.exit_status
    how = "exit code unknown" if status is None else str(status)
    return Excuse(LEFT, 0.0, f"{how}, without taking part")


def _by_processor_time(excuse: Excuse, share: float) -> Excuse:
    """Raise the limit of a rank that computes but gets less than half of a CPU."""
    if share >= LEAST_SHARE:
        return excuse
    limit = excuse.limit_seconds / share
    got = f"its main thread computes and got {share:.2g} of a CPU: {limit:.0f} s"
    return excuse._replace(limit_seconds=limit, reason=f"{excuse.reason}; {got}")


def _within(
    rank: RankFacts,
    habits: Habits,
    gap_seconds: float,
    *,
    is_long: bool,
) -> Excuse:
    """How long this rank may be quiet in its present stage."""
    stage = rank.stage
    durations = habits.durations(stage)
    is_first = _is_first(stage, len(durations), habits.num_steps)
    is_known = bool(_COMPUTING_STAGE.match(stage)) and len(durations) >= _ENOUGH_DURATIONS
    sleeps = is_known and rank.is_idle
    at_work = stage == IDLE and rank.is_at_work
    asks = rank.asks_since_ns is not None  # the answer of a server has its own limit
    if sleeps:
        floor = SLEEPING_FLOOR_SECONDS
    elif is_long:
        floor = _long_floor(rank, len(durations))
    else:
        floor = _first_floor(rank, at_work=at_work) if is_first else _floor(rank)
    since = " and its main thread has computed or polled since" if at_work else ""
    usual_seconds = max(2 * gap_seconds, _STACKS_DUE_SECONDS if rank.stacks is None else 0.0)
    is_usual = stage != IDLE or rank.quiet_seconds <= usual_seconds
    is_learned = not asks and (is_long or (is_usual and not is_first))
    if gap_seconds:
        limit = max(floor, 2 * gap_seconds)
        observed = f"ranks were quiet or waited for up to {gap_seconds:.3g} s {_watched_text(rank)}"
        reason = f"outside all stages: {observed}, may be quiet for {limit:.0f} s{since}"
        return Excuse("", limit, reason, is_learned)
    typical = median(durations) if durations else 0.0
    longest = durations[-1] if durations else 0.0
    limit = max(floor, (10 if is_first or sleeps else 5) * typical, (4 if sleeps else 2) * longest)
    observed = f"{typical:.3g} s (median of {len(durations)}, longest {longest:.3g} s)"
    name = "code outside all stages" if stage == IDLE else stage
    usual = f"{name} takes {observed}" if durations else f"{name} has not ended before"
    since = " and it has slept since" if sleeps else since
    reason = f"{usual}, may be quiet for {limit:.0f} s{since}"
    return Excuse("", limit, reason, is_learned)


def _watched_text(rank: RankFacts) -> str:
    """The period in which ``longest_gap_seconds`` was measured, at most an hour."""
    seconds = (rank.now_ns - rank.begin_ns) / 1e9
    return "in the last hour" if seconds >= _REMEMBERED_SECONDS else "so far"


def _floor(rank: RankFacts) -> float:
    """The floor for a running job that does nothing known to take long."""
    if rank.stage == IDLE:
        return OWN_WAIT_FLOOR_SECONDS if own_wait(rank) else UNMARKED_FLOOR_SECONDS
    return NO_STACKS_FLOOR_SECONDS if rank.stacks is None else FLOOR_SECONDS


def own_wait(rank: RankFacts) -> str:
    """What the rank waits for outside the job, as in "a child process"; "" if unknown."""
    return own_wait_of(rank.stacks) if rank.stacks is not None else ""


def _first_floor(rank: RankFacts, *, at_work: bool) -> float:
    if rank.seconds_before_guest < FIRST_FLOOR_SECONDS:
        return FIRST_FLOOR_SECONDS
    # the guest was attached later: compilation and warm-up are over
    return LONG_FLOOR_SECONDS if at_work else UNMARKED_FLOOR_SECONDS


def _is_first(stage: str, num_durations: int, num_steps: int | None) -> bool:
    """Whether usual durations are unknown, because the job may still compile or warm up."""
    if num_steps is not None:
        return num_steps < _FIRST_STEPS or (stage != IDLE and not num_durations)
    return num_durations < _FIRST_DURATIONS
