"""Processes that a signal has suspended: nothing they do explains how they stand."""

from __future__ import annotations

from dataclasses import replace

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.rank import RankFacts, Waiter
from dfx_agent.judge.hang import limits, sentences
from dfx_agent.judge.hang.places import where_text
from dfx_agent.judge.hang.role import Role
from dfx_agent.judge.words import calls_text, have_text, waits_text
from dfx_agent.snapshot import Verdict

SUSPENDED_SECONDS = 8.0  # a debugger or a profiler stops a process for a moment


def suspended(role: Role) -> list[RankFacts]:
    """Living ranks that have been in state T for a while, whether anybody waits for them or not."""
    return [rank for rank in role.living if rank.is_stopped and _is_long(rank)]


def _is_long(rank: RankFacts) -> bool:
    is_quiet = rank.quiet_seconds >= limits.FLOOR_SECONDS
    return is_quiet and suspended_seconds(rank) >= SUSPENDED_SECONDS


def suspended_seconds(rank: RankFacts) -> float:
    """Since it was seen suspended, and not since its last record, which may be much older."""
    known = rank.stopped_seconds
    return rank.quiet_seconds if known is None else min(known, rank.quiet_seconds)


def suspended_verdict(role: Role, ranks: list[RankFacts], waiters: list[Waiter]) -> Verdict:
    """Found: who is suspended, since when, and how to resume it."""
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
        f"pid {rank.pid} is stopped (state T); continue it: kill -CONT {rank.pid}"
        for rank in ranks[:4]
    ]
    lines += [waits_text(others)] if others else []
    verdict = role.found(limits.STOPPED, summary, ranks, lines, role.now_ns - int(seconds * 1e9))
    action = sentences.SUSPENDED.action_text(command=command)
    return replace(verdict, action=action)
