"""A judge that sees a part of the job cannot say that the whole is clear."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dfx_agent.base.text import joined
from dfx_agent.facts.seat import Seat
from dfx_agent.judge import sentences
from dfx_agent.judge.words import uncapitalized
from dfx_agent.snapshot import Verdict

PART_OF_JOB = "part of the job"
HERE_ONLY = "Of this node only: "
# what a rank elsewhere may do unseen; a divergence or a batch is judged from what is reported here
_OF_ALL_RANKS = frozenset({"hang", "straggler", "crash"})


def only_what_is_seen(verdicts: Iterable[Verdict], seats: Iterable[Seat]) -> tuple[Verdict, ...]:
    """What is "clear" of a role whose other ranks are elsewhere becomes "insufficient evidence".

    A finding stays a finding, and what already says that evidence is missing keeps its reason.
    """
    missing = _missing(list(seats))
    return tuple(
        _unsure(verdict, missing[verdict.role])
        if verdict.state == "clear" and verdict.kind in _OF_ALL_RANKS and verdict.role in missing
        else verdict
        for verdict in verdicts
    )


def crashes_of_this_node(verdicts: Iterable[Verdict], seats: Iterable[Seat]) -> tuple[Verdict, ...]:
    """A crash that a node finds says that ranks of other nodes may have died before.

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
    part = missing.removeprefix(HERE_ONLY).removesuffix(".")
    summary = sentences.CRASH_ON_THIS_NODE(part=part, finding=uncapitalized(verdict.summary))
    return replace(verdict, summary=summary, action=sentences.CRASH_ON_THIS_NODE.action)


def part_text(seats: Iterable[Seat]) -> str:
    """As in "Of this node only: 4 of 8 ranks are seen here."; "" where all of the job are."""
    return joined(_missing(list(seats)).values())


def step_origin_text(seats: Iterable[Seat]) -> str:
    """That the job's own step number is unknown; "" where it is known."""
    counts = any(seat.counts_from_attach for seat in _newest_attempt(list(seats)))
    return sentences.STEPS_FROM_ATTACH() if counts else ""


def _unsure(verdict: Verdict, missing: str) -> Verdict:
    evidence = (*([f"of these: {verdict.summary}"] if verdict.summary else []), *verdict.evidence)
    return replace(
        verdict, state="insufficient evidence", summary=missing, cause=PART_OF_JOB,
        evidence=evidence,
    )  # fmt: skip


def _missing(seats: list[Seat]) -> dict[str, str]:
    """Role -> "Of this node only: 4 of 8 ranks are seen here.", for roles of which some are not."""
    newest = _newest_attempt(seats)
    found: dict[str, str] = {}
    for role in {seat.role for seat in newest}:
        of_role = [seat for seat in newest if seat.role == role]
        world_size = max(seat.world_size for seat in of_role)
        # several roles may share one world: each number counts once
        of_world = [seat for seat in newest if seat.world_size == world_size]
        num_seen = max(_num_ranks(of_role), _num_ranks(of_world))
        if num_seen < world_size:
            found[role] = sentences.PART_OF_JOB(num_seen=num_seen, num_ranks=world_size)
    return found


def _num_ranks(seats: list[Seat]) -> int:
    """Different ranks; a process that does not know its number is one more."""
    known = {seat.rank for seat in seats if seat.rank >= 0}
    return len(known) + sum(seat.rank < 0 for seat in seats)


def _newest_attempt(seats: list[Seat]) -> list[Seat]:
    """What an earlier attempt left behind is not of the world that runs now."""
    attempt = max((seat.attempt for seat in seats), default=0)
    return [seat for seat in seats if seat.is_living or seat.attempt == attempt]
