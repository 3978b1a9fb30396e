"""Judges whether a rank crashed: its process has ended unexpectedly.

A rank may also have ended normally too early, so that other ranks failed without it. Then it never
reached a collective that the other ranks were in.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence

from dfx_agent.base.text import age_text, capitalized, seconds_text
from dfx_agent.facts.rank import RankFacts
from dfx_agent.judge.crash.endings import (
    ENDING_SECONDS,
    OUT_OF_MEMORY,
    cause_of,
    ending_text,
    endings_text,
    error_text,
    failure_lines,
    failure_of,
    has_crashed,
    is_own_child,
    lost_peer,
    place_text,
)
from dfx_agent.judge.crash.order import (
    first_to_die,
    missed_groups,
    was_asked,
    was_ended_by_launcher,
)
from dfx_agent.judge.crash.sentences import (
    CHILD_ENDED,
    DIED,
    JOB_STOPPED,
    LEFT_EARLY,
    LOST_PEER,
    NONE_DIED,
    ORDER_UNKNOWN,
    RAISED,
    SHUTTING_DOWN,
    TERMINATED,
)
from dfx_agent.judge.words import ranks_text
from dfx_agent.snapshot import Verdict

CAUSE = "left early"
_MAX_LINES = 8
_UNSEEN_SECONDS = 5.0  # usually an agent knows the time of an end more exactly
# a launcher that ends a job sends its signal to all ranks within this time
_LAUNCHER_SECONDS = 10.0


def crash_verdict(
    role: str, ranks: Sequence[RankFacts], now_ns: int, named: Collection[int] = ()
) -> Verdict:
    """The crash verdict of a role.

    The ranks that died first are blamed, if their order is known. If a rank ended normally before
    them and they needed it, this rank is blamed instead. ``named``: pids that an earlier verdict
    named; they stay named if the order becomes unclear.
    """
    died = [rank for rank in ranks if has_crashed(rank, ranks)]
    if not died:
        return _none_died(role, ranks)
    first = first_to_die([rank for rank in died if not was_ended_by_launcher(rank, died)] or died)
    left = leavers(first, ranks)
    if left:
        return left_early(role, left, died)
    unclear = _unclear(ranks, first, died, now_ns)
    before = [rank for rank in died if rank.pid in named and not was_asked(rank)]
    if unclear and before:
        first, unclear = before, ""
    later = [rank for rank in died if rank not in first]
    lines = _lines(first, later, ranks)
    if unclear:
        return Verdict("crash", "insufficient evidence", role, unclear, evidence=lines)
    summary, action = _headline(first)
    return Verdict(
        kind="crash",
        state="found",
        role=role,
        summary=summary,
        ranks=tuple(rank.label for rank in first),
        stage=first[0].stage,
        cause=cause_of(first[0]),
        step=first[0].latest_step,
        since_seconds=first[0].epoch_seconds(_since_ns(first)),
        evidence=lines,
        action=action,
    )


def _headline(first: Sequence[RankFacts]) -> tuple[str, str]:
    """(headline, action) for the ranks that died first; the action is "" if the runbook has it."""
    fields = {"ranks": capitalized(ranks_text(first)), "ending": endings_text(first)}
    failure = next(filter(None, map(failure_of, first)), None)
    if failure is not None:
        sentence = LOST_PEER if all(map(lost_peer, first)) else RAISED
        error = {"error": error_text(failure), "place": place_text(failure)}
        return sentence(**fields, **error), sentence.action_text()
    sentence = TERMINATED if all(map(was_asked, first)) else DIED
    return sentence(**fields, place=first[0].place), ""


def _unclear(
    ranks: Sequence[RankFacts], first: Sequence[RankFacts], died: Sequence[RankFacts], now_ns: int
) -> str:
    """Why no rank can be blamed; "" if ``first`` can be."""
    asked = [rank for rank in died if was_asked(rank)]
    if all(map(was_asked, first)):
        latest_ns = max(rank.gone_ns or now_ns for rank in died)
        is_left = any(rank.is_living for rank in ranks)
        is_over = not is_left or (now_ns - latest_ns) / 1e9 < _LAUNCHER_SECONDS
        if is_over and (len(asked) > 1 or len(asked) == len(died)):
            return JOB_STOPPED(ranks=ranks_text(asked), ending=endings_text(asked))
    if len(first) > 1 and not any(rank.is_outlived for rank in first):
        return ORDER_UNKNOWN(ranks=capitalized(ranks_text(first)), ending=endings_text(first))
    return ""


def _since_ns(first: Sequence[RankFacts]) -> int:
    """When the ranks were last known to be alive, or found missing if that is unknown."""
    ended_ns = (rank.gone_ns if rank.alive_ns is None else rank.alive_ns for rank in first)
    return min(filter(None, ended_ns), default=first[0].now_ns)


def _none_died(role: str, ranks: Sequence[RankFacts]) -> Verdict:
    """The verdict if no rank has died. Ranks that are shutting down may still fail."""
    ending = [rank for rank in ranks if rank.is_ending and rank.ending_seconds < ENDING_SECONDS]
    if ending:
        are, they = ("is", "it has") if len(ending) == 1 else ("are", "they have")
        text = SHUTTING_DOWN(ranks=capitalized(ranks_text(ending)), are=are, they=they)
        return Verdict("crash", "insufficient evidence", role, text)
    return Verdict("crash", "clear", role, _no_crash(ranks))


def _no_crash(ranks: Sequence[RankFacts]) -> str:
    own = [rank for rank in ranks if rank.state == "died" and is_own_child(rank, ranks)]
    if not own:
        return NONE_DIED()
    endings = "; ".join(dict.fromkeys(map(_child_text, own)))
    return CHILD_ENDED(ranks=capitalized(ranks_text(own)), ending=endings)


def _child_text(rank: RankFacts) -> str:
    return "ended with an unknown exit code" if rank.exit_status is None else ending_text(rank)


def _lines(
    first: Sequence[RankFacts], later: Sequence[RankFacts], ranks: Sequence[RankFacts]
) -> tuple[str, ...]:
    lines = [_last_place(rank) for rank in first[:_MAX_LINES]]
    lines += [f"{ranks_text([rank])} {ending_text(rank)}" for rank in later[:_MAX_LINES]]
    lines += [line for rank in (*first, *later)[:_MAX_LINES] for line in failure_lines(rank)]
    if later:
        after = min((rank.gone_ns or 0) - (first[0].gone_ns or 0) for rank in later) / 1e9
        order = "later" if after >= 0 else "before"
        lines.append(f"{ranks_text(later)} died {seconds_text(abs(after))} {order}")
    waiting = [rank for rank in ranks if rank.is_living and rank.arrivals]
    lines += [f"{ranks_text([rank])} waits in {rank.arrivals[0]}" for rank in waiting]
    return tuple(lines[: 2 * _MAX_LINES])


def _last_place(rank: RankFacts) -> str:
    """Evidence: where the rank was last seen."""
    opened = " > ".join(rank.open_spans)
    where = f"in {opened}" if opened else rank.place
    since = ""
    if rank.last_event_ns is not None and rank.gone_ns is not None:
        quiet = max(0, rank.gone_ns - rank.last_event_ns) / 1e9
        since = f", last record {seconds_text(quiet)} before the process was missing"
    step = "" if rank.latest_step is None else f" of step {rank.latest_step}"
    since += _between(rank)
    return f"{ranks_text([rank])} (pid {rank.pid}): {where}{step}{since}"


def _between(rank: RankFacts) -> str:
    """The interval of the death, if the agent did not observe the process for some time."""
    alive_ns, gone_ns = rank.alive_ns, rank.gone_ns
    if alive_ns is None or gone_ns is None or gone_ns - alive_ns < _UNSEEN_SECONDS * 1e9:
        return ""
    ago = [age_text((rank.now_ns - ns) / 1e9) for ns in (alive_ns, gone_ns)]
    when = f"about {ago[0]} ago" if ago[0] == ago[1] else f"between {ago[0]} and {ago[1]} ago"
    return f"; it ended {when}, unobserved"


def leavers(first: Sequence[RankFacts], ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """Ranks that ended normally before ``first`` although these ranks needed them."""
    return [
        rank
        for rank in ranks
        if not has_crashed(rank, ranks)
        and all(_is_left_behind(by=rank, died=victim) for victim in first)
    ]


def left_early(role: str, left: Sequence[RankFacts], died: Sequence[RankFacts]) -> Verdict:
    """The finding on ranks that ended too early. ``died``: ranks that failed afterwards."""
    first = min(left, key=_end_ns)
    step = first.latest_step
    return Verdict(
        kind="crash",
        state="found",
        role=role,
        summary=LEFT_EARLY(
            ranks=capitalized(ranks_text(left)),
            step="" if step is None else f" in step {step}",
            failed=capitalized(ranks_text(died)),
            ending=endings_text(died),
        ),
        ranks=tuple(rank.label for rank in left),
        stage=first.stage,
        cause=CAUSE,
        step=step,
        since_seconds=first.epoch_seconds(_end_ns(first)),
        evidence=tuple(_leaver_lines(left, died[0])),
    )


def _is_left_behind(*, by: RankFacts, died: RankFacts) -> bool:
    """Whether ``died`` failed because ``by`` had ended normally before.

    The last events of both are compared. The exit code of ``by`` may be unknown (after an attach),
    and its process may still be shutting down.
    """
    status = by.exit_status
    has_left = by.is_ending or (by.gone_ns is not None and by.state == "exited")
    if not has_left or (status is not None and not status.is_success):
        return False
    is_missed_first = by.gone_ns is not None and by.gone_ns <= (died.gone_ns or 0)
    is_first = _end_ns(by) < _end_ns(died) and (is_missed_first or lost_peer(died))
    return is_first and _fails_by_itself(died) and bool(missed_groups(by, died))


def _fails_by_itself(died: RankFacts) -> bool:
    """Whether the rank failed by an error or an abort of torch's watchdog, and was not killed."""
    status = died.exit_status
    return cause_of(died) != OUT_OF_MEMORY and (
        status is None or status.signal in {None, signal.SIGABRT}
    )


def _leaver_lines(left: Sequence[RankFacts], other: RankFacts) -> list[str]:
    return [
        f"{ranks_text([rank])}: last collective of group {group} is #{rank.reached[group]}, "
        f"{ranks_text([other])} reached #{other.reached[group]}"
        for rank in left
        for group in missed_groups(rank, other)
    ]


def _end_ns(rank: RankFacts) -> int:
    """Time of the last event of the rank."""
    return rank.last_event_ns or rank.gone_ns or 0
