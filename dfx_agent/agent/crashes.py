"""Whether a rank died, told apart from a hang: its process is gone and its segment not closed."""

from __future__ import annotations

from collections.abc import Sequence

from dfx_agent.agent.progress import IDLE, Track
from dfx_agent.agent.wording import ranks_text, seconds_text
from dfx_agent.snapshot import Verdict

_MAX_LINES = 8


def crash_verdict(role: str, ranks: Sequence[Track], now_ns: int) -> Verdict:
    """To blame are the first to die, if somebody outlived them or it was one alone."""
    died = [rank for rank in ranks if rank.process.state == "died"]
    for rank in died:
        if rank.is_outlived is None:
            rank.is_outlived = any(other.process.follower_lives() for other in ranks)
    if not died:
        return Verdict("crash", "clear", role, "no rank has died")
    first_ns = min(rank.gone_ns or now_ns for rank in died)
    first = [rank for rank in died if rank.gone_ns == first_ns]
    later = [rank for rank in died if rank.gone_ns != first_ns]
    if len(first) > 1 and not any(rank.is_outlived for rank in first):
        summary = (
            f"{ranks_text(first)} died at the same moment: killed together, or one took the "
            "others with it between two readings"
        )
        return Verdict(
            "crash", "insufficient evidence", role, summary, evidence=_lines(first, later, ranks)
        )
    where = first[0].stage
    summary = f"{ranks_text(first)} died in {where}: gone without closing the segment"
    return Verdict(
        kind="crash",
        state="found",
        role=role,
        summary=summary,
        ranks=tuple(rank.process.label for rank in first),
        stage=where,
        cause="died",
        step=first[0].process.step,
        since_seconds=first[0].process.follower.epoch_seconds(first_ns),
        evidence=_lines(first, later, ranks),
    )


def _lines(
    first: Sequence[Track], later: Sequence[Track], ranks: Sequence[Track]
) -> tuple[str, ...]:
    lines = [_stood(rank) for rank in first[:_MAX_LINES]]
    if later:
        after = min((rank.gone_ns or 0) - (first[0].gone_ns or 0) for rank in later) / 1e9
        lines.append(f"{ranks_text(later)} died {seconds_text(after)} later")
    waiting = [rank for rank in ranks if rank.process.is_living and rank.arrivals]
    lines += [f"{ranks_text([rank])} waits in {rank.arrivals[0]}" for rank in waiting]
    return tuple(lines[: 2 * _MAX_LINES])


def _stood(rank: Track) -> str:
    """Where it stood when it was last seen."""
    process = rank.process
    opened = " > ".join(event.name for event in sorted(process.inflight, key=lambda e: e.span))
    since = ""
    if process.last_event_ns is not None and rank.gone_ns is not None:
        quiet = max(0, rank.gone_ns - process.last_event_ns) / 1e9
        since = f", last record {seconds_text(quiet)} before it was missed"
    step = "" if process.step is None else f" of step {process.step}"
    return f"{ranks_text([rank])} (pid {process.pid}): in {opened or IDLE}{step}{since}"
