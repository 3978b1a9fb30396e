"""Limits verdicts of a node that observes only some ranks of the job.

Such a node cannot know that the whole job is clear.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dfx_agent.base.text import joined
from dfx_agent.facts.seat import Seat
from dfx_agent.judge import sentences
from dfx_agent.snapshot import Verdict

PART_OF_JOB = "part of the job"
THIS_NODE_ONLY = "Of this node only: "
# kinds of verdicts that need all ranks; others are judged from what the local ranks report
_NEEDS_ALL_RANKS = frozenset({"hang", "straggler", "crash"})


def only_what_is_seen(verdicts: Iterable[Verdict], seats: Iterable[Seat]) -> tuple[Verdict, ...]:
    """Changes "clear" to "insufficient evidence" for roles with ranks on other nodes.

    Findings and verdicts that already lack evidence are not changed.
    """
    missing = _missing(list(seats))
    return tuple(
        _unsure(verdict, missing[verdict.role])
        if verdict.state == "clear" and verdict.kind in _NEEDS_ALL_RANKS and verdict.role in missing
        else verdict
        for verdict in verdicts
    )


def crashes_of_this_node(verdicts: Iterable[Verdict], seats: Iterable[Seat]) -> tuple[Verdict, ...]:
    """Adds to each crash found that ranks of other nodes may have died before.

    Only a hub knows which rank of the job died first.
    """
    missing = _missing(list(seats))
    return tuple(
        _of_this_node(verdict, missing[verdict.role])
        if (verdict.kind, verdict.state) == ("crash", "found") and verdict.role in missing
        else verdict
        for verdict in verdicts
    )


def _of_this_node(verdict: Verdict, missing: str) -> Verdict:
    part = missing.removeprefix(THIS_NODE_ONLY).removesuffix(".")
    summary = sentences.CRASH_ON_THIS_NODE(part=part, finding=verdict.summary)
    return replace(verdict, summary=summary, action=sentences.CRASH_ON_THIS_NODE.action)


def part_text(seats: Iterable[Seat]) -> str:
    """As in "Of this node only: 4 of 8 ranks are observed."; "" if all ranks are observed."""
    return joined(_missing(list(seats)).values())


def step_origin_text(seats: Iterable[Seat]) -> str:
    """A sentence that the job's own step number is unknown; "" if it is known."""
    counts = any(seat.counts_from_attach for seat in _latest_attempt(list(seats)))
    return sentences.STEPS_FROM_ATTACH() if counts else ""


def _unsure(verdict: Verdict, missing: str) -> Verdict:
    evidence = (*([f"of these: {verdict.summary}"] if verdict.summary else []), *verdict.evidence)
    return replace(
        verdict, state="insufficient evidence", summary=missing, cause=PART_OF_JOB,
        evidence=evidence,
    )  # fmt: skip


def _missing(seats: list[Seat]) -> dict[str, str]:
    """Role -> "Of this node only: 4 of 8 ranks are observed.", for roles with ranks elsewhere."""
    latest = _latest_attempt(seats)
    text_by_role: dict[str, str] = {}
    for role in {seat.role for seat in latest}:
        of_role = [seat for seat in latest if seat.role == role]
        world_size = max(seat.world_size for seat in of_role)
        # several roles may share one world: each number counts once
        of_world = [seat for seat in latest if seat.world_size == world_size]
        num_seen = max(_num_ranks(of_role), _num_ranks(of_world))
        if num_seen < world_size:
            text_by_role[role] = sentences.PART_OF_JOB(num_seen=num_seen, num_ranks=world_size)
    return text_by_role


def _num_ranks(seats: list[Seat]) -> int:
    """Number of distinct ranks; each process without a rank number counts as one."""
    numbers = {seat.rank for seat in seats if seat.rank >= 0}
    return len(numbers) + sum(seat.rank < 0 for seat in seats)


def _latest_attempt(seats: list[Seat]) -> list[Seat]:
    """Seats of the present attempt, without ended processes of earlier attempts."""
    attempt = max((seat.attempt for seat in seats), default=0)
    return [seat for seat in seats if seat.is_living or seat.attempt == attempt]
