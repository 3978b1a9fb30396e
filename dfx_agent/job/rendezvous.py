"""Verdicts on a job that is stuck in rendezvous: its ranks wait for ranks that have not joined.

The wait is reported after 45 s. A node may need minutes to join, so the wait is a hang only after
300 s. It must also be confirmed: a stack shows that a rank is in the rendezvous of torch, or nodes
are missing at the rendezvous of torchrun.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.seat import Launch, Seat
from dfx_agent.job import sentences
from dfx_agent.judge.words import absent_text, stack_lines
from dfx_agent.snapshot import Verdict

SAID_SECONDS, FOUND_SECONDS = 45.0, 300.0
CAUSE = "rendezvous"

_RENDEZVOUS = re.compile(
    r"torch/distributed/"
    r"(rendezvous\.py|elastic/rendezvous/|distributed_c10d\.py init_process_group)"
)


def rendezvous_verdict(role: str, ranks: Sequence[RankFacts], missing: str) -> Verdict | None:
    """``missing``: text on the missing ranks. None after the rendezvous and in its first 45 s."""
    living = [rank for rank in ranks if rank.is_living]
    if not missing or not living or any(map(_has_met, living)):
        return None
    since_ns = max(rank.begin_ns for rank in living)
    seconds = (living[0].now_ns - since_ns) / 1e9
    if seconds < SAID_SECONDS:
        return None
    waiting = [rank for rank in living if _is_in_rendezvous(rank)]
    sentence = sentences.IN_RENDEZVOUS if waiting else sentences.NOT_BEGUN
    is_found = bool(waiting) and seconds >= FOUND_SECONDS
    return Verdict(
        kind="hang",
        state="found" if is_found else "insufficient evidence",
        role=role,
        summary=sentence(duration=seconds_text(seconds), missing=missing),
        cause=CAUSE if is_found else "",
        since_seconds=living[0].epoch_seconds(since_ns),
        evidence=tuple(stack_lines(living)),
    )


def _has_met(rank: RankFacts) -> bool:
    return rank.has_groups or bool(rank.reached) or rank.step is not None or rank.num_steps > 0


def _is_in_rendezvous(rank: RankFacts) -> bool:
    main = rank.stacks.main if rank.stacks else None
    frames = main.frames if main else ()
    return any(_RENDEZVOUS.search(f"{frame.file} {frame.function}") for frame in frames)


@dataclass(frozen=True, slots=True)
class Launched:
    """The launcher of a node without ranks, with its start by the clocks of the local host."""

    node: str
    launch: Launch
    since_ns: int
    since_seconds: float


def launch_verdict(
    launched: Sequence[Launched], idle_nodes: Collection[str], now_ns: int
) -> Verdict | None:
    """A verdict on the nodes that torchrun waits for; None in the first 45 s."""
    if not launched:
        return None
    latest = max(launched, key=lambda launcher: launcher.since_ns)
    seconds = (now_ns - latest.since_ns) / 1e9
    if seconds < SAID_SECONDS:
        return None
    summary, is_waiting = _launch_text(launched, idle_nodes, seconds_text(seconds))
    is_found = is_waiting and seconds >= FOUND_SECONDS
    return Verdict(
        kind="hang",
        state="found" if is_found else "insufficient evidence",
        role="",
        summary=summary,
        cause=CAUSE if is_found else "",
        since_seconds=latest.since_seconds,
        evidence=tuple(map(_line, launched)),
    )


def _launch_text(
    launched: Sequence[Launched], idle_nodes: Collection[str], duration: str
) -> tuple[str, bool]:
    """(Text on what torchrun waits for, whether torchrun waits for other nodes)."""
    num_nodes = max(launcher.launch.num_nodes for launcher in launched)
    if len(launched) >= num_nodes:
        nodes = ", ".join(sorted(launcher.node for launcher in launched))
        return sentences.NO_RANKS_YET(nodes=nodes, duration=duration), False
    idle = ", ".join(sorted(set(idle_nodes) - {launcher.node for launcher in launched}))
    ranks = {launcher.launch.node_rank for launcher in launched}
    missing = idle or ("" if -1 in ranks else absent_text("node rank", ranks, num_nodes))
    text = sentences.TORCHRUN_WAITS(
        duration=duration,
        num_here=len(launched),
        num_nodes=num_nodes,
        missing=f", {missing} did not" if missing else "",
    )
    return text, True


def _line(launcher: Launched) -> str:
    at = f" meets at {launcher.launch.meets_at}" if launcher.launch.meets_at else ""
    rank = f" (node rank {launcher.launch.node_rank})" if launcher.launch.node_rank >= 0 else ""
    return f"torchrun on {launcher.node}{rank}{at}"


def is_other_job(reported: Iterable[Seat], members: Iterable[Seat]) -> bool:
    """Whether ranks of one role and attempt use other rendezvous addresses than ``members``."""
    member_addresses = _addresses(members)
    return any(
        addresses.isdisjoint(member_addresses[key])
        for key, addresses in _addresses(reported).items()
        if key in member_addresses
    )


def rendezvous_of(seats: Iterable[Seat]) -> str:
    """The rendezvous address of these processes; "" if it is unknown."""
    return next((seat.rendezvous.partition("@")[0] for seat in seats if seat.rendezvous), "")


def _addresses(seats: Iterable[Seat]) -> dict[tuple[str, int], set[str]]:
    """(role, attempt) -> rendezvous addresses of its ranks."""
    found: dict[tuple[str, int], set[str]] = {}
    for seat in seats:
        if seat.rendezvous:
            found.setdefault((seat.role, seat.attempt), set()).add(seat.rendezvous)
    return found
