"""Whether a rank crashed, told apart from a hang: its process is gone and should not be."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from dfx_agent.durations import seconds_text
from dfx_agent.facts.rank import RankFacts
from dfx_agent.judge.crash.endings import (
    OUT_OF_MEMORY,
    cause_of,
    ending_text,
    endings_text,
    has_crashed,
    is_own_child,
)
from dfx_agent.judge.crash.left_early import leavers, left_early
from dfx_agent.judge.words import ranks_text
from dfx_agent.snapshot import Verdict

_MAX_LINES = 8
# whom a launcher tells to end, it tells all ranks; who then still lives is left behind
_TOLD_SECONDS = 10.0


def crash_verdict(role: str, ranks: Sequence[RankFacts], now_ns: int) -> Verdict:
    """To blame are the first to go, if somebody outlived them or it was one alone.

    Who ended in order before them and was missed (see left_early.py) is, rather than they.
    """
    died = [rank for rank in ranks if has_crashed(rank, ranks)]
    if not died:
        return Verdict("crash", "clear", role, _no_crash(ranks))
    blamable = [rank for rank in died if not _was_taken_along(rank, died)] or died
    first_ns = min(rank.gone_ns or now_ns for rank in blamable)
    first = [rank for rank in blamable if rank.gone_ns == first_ns]
    left = leavers(first, ranks)
    if left:
        return left_early(role, left, died)
    later = [rank for rank in died if rank not in first]
    unclear = _unclear(ranks, first, died, now_ns)
    if unclear:
        return Verdict(
            "crash", "insufficient evidence", role, unclear, evidence=_lines(first, later, ranks)
        )
    return Verdict(
        kind="crash",
        state="found",
        role=role,
        summary=f"{ranks_text(first)} {endings_text(first)}; last seen {first[0].place}",
        ranks=tuple(rank.label for rank in first),
        stage=first[0].stage,
        cause=cause_of(first[0]),
        step=first[0].step,
        since_seconds=first[0].epoch_seconds(first_ns),
        evidence=_lines(first, later, ranks),
    )


def _unclear(
    ranks: Sequence[RankFacts], first: Sequence[RankFacts], died: Sequence[RankFacts], now_ns: int
) -> str:
    """Why nobody can be blamed; "" when ``first`` can."""
    if all(rank.exit_status and rank.exit_status.was_asked_for for rank in died):
        newest_ns = max(rank.gone_ns or now_ns for rank in died)
        is_left = any(rank.is_living for rank in ranks)
        if not is_left or (now_ns - newest_ns) / 1e9 < _TOLD_SECONDS:
            return f"{ranks_text(died)} {endings_text(died)}: told to end from outside"
    if len(first) > 1 and not any(rank.is_outlived for rank in first):
        return (
            f"{ranks_text(first)} died at the same moment: killed together, or one took the "
            "others with it between two readings"
        )
    return ""


def _was_taken_along(rank: RankFacts, died: Sequence[RankFacts]) -> bool:
    """Whether it was told to end, or killed for not doing so: somebody ended the whole job."""
    status = rank.exit_status
    if status is None or cause_of(rank) == OUT_OF_MEMORY:
        return False
    told_ns = [r.gone_ns or 0 for r in died if r.exit_status and r.exit_status.was_asked_for]
    was_late = status.signal == signal.SIGKILL and any(ns < (rank.gone_ns or 0) for ns in told_ns)
    return status.was_asked_for or was_late


def _no_crash(ranks: Sequence[RankFacts]) -> str:
    own = [rank for rank in ranks if rank.state == "died" and is_own_child(rank, ranks)]
    if not own:
        return "no rank has died"
    endings = "; ".join(dict.fromkeys(map(_child_text, own)))
    return f"no rank has died; {ranks_text(own)}, a child of a rank that lives on, {endings}"


def _child_text(rank: RankFacts) -> str:
    return "ended, exit code unknown" if rank.exit_status is None else ending_text(rank)


def _lines(
    first: Sequence[RankFacts], later: Sequence[RankFacts], ranks: Sequence[RankFacts]
) -> tuple[str, ...]:
    lines = [_stood(rank) for rank in first[:_MAX_LINES]]
    lines += [f"{ranks_text([rank])} {ending_text(rank)}" for rank in later[:_MAX_LINES]]
    if later:
        after = min((rank.gone_ns or 0) - (first[0].gone_ns or 0) for rank in later) / 1e9
        order = "later" if after >= 0 else "before"
        lines.append(f"{ranks_text(later)} died {seconds_text(abs(after))} {order}")
    waiting = [rank for rank in ranks if rank.is_living and rank.arrivals]
    lines += [f"{ranks_text([rank])} waits in {rank.arrivals[0]}" for rank in waiting]
    return tuple(lines[: 2 * _MAX_LINES])


def _stood(rank: RankFacts) -> str:
    """Where it stood when it was last seen."""
    opened = " > ".join(rank.open_spans)
    where = f"in {opened}" if opened else rank.place
    since = ""
    if rank.last_event_ns is not None and rank.gone_ns is not None:
        quiet = max(0, rank.gone_ns - rank.last_event_ns) / 1e9
        since = f", last record {seconds_text(quiet)} before it was missed"
    step = "" if rank.step is None else f" of step {rank.step}"
    return f"{ranks_text([rank])} (pid {rank.pid}): {where}{step}{since}"
