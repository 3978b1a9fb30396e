"""Which nodes of a job are connected, never joined, are disconnected, or are lost.

A disconnected agent says nothing about its ranks. Two other facts do: whether the ranks still take
part in collectives with other nodes, and whether their host answers. A node without a connection
is not lost if its ranks still take part in collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.seat import Seat
from dfx_agent.job import sentences
from dfx_agent.job.sentences import NODE_LOST
from dfx_agent.judge.words import absent_text, labels_text
from dfx_agent.snapshot import Verdict

SILENT_SECONDS = 15.0
CAUSE = "node lost"
# after the last report, peers that wait this long confirm that the ranks are lost too
WAIT_SECONDS = 5.0
# the same if its ranks still took part in collectives after its last report
WAIT_LONGER_SECONDS = 30.0
# without waiting peers, as in a long rollout, the host must be unreachable for longer
ALONE_SECONDS = 60.0

# whether a host answers on the port of its agent; "refused": the host is up, the agent is not
Reach = Literal["answers", "refused", "no answer"]


@dataclass(frozen=True, slots=True)
class Presence:
    """The connection of a node. ``labels``: its living ranks in its last report.

    ``takes_part``: whether its ranks still take part in collectives; None if that is unknown.
    ``has_progressed``: since its last report, other ranks completed collectives that need its
    ranks.
    """

    node: str
    silent_seconds: float
    labels: tuple[str, ...] = ()
    has_left: bool = False
    takes_part: bool | None = None
    has_progressed: bool = False
    reach: Reach | None = None

    @property
    def is_connected(self) -> bool:
        return not self.has_left and self.silent_seconds < SILENT_SECONDS

    def __str__(self) -> str:
        """One sentence; "" for a node that is connected or has no living rank."""
        if self.is_connected or not self.labels:
            return ""
        whose, duration = labels_text(self.labels), seconds_text(self.silent_seconds)
        is_one = len(self.labels) == 1
        runs = f"{whose} still {'takes' if is_one else 'take'} part in collectives"
        unknown = f"whether {whose} {'runs' if is_one else 'run'} is not known"
        state = runs if self.takes_part else unknown
        if self.has_left:
            return sentences.AGENT_ENDED(node=self.node, state=state)
        if self.reach != "no answer":
            return sentences.AGENT_SILENT(node=self.node, duration=duration, state=state)
        sentence = sentences.NODE_CUT_OFF if self.takes_part else sentences.NODE_GONE
        return sentence(node=self.node, duration=duration, ranks=whose)


def missing_text(seats: Sequence[Seat], role: str, idle_nodes: Iterable[str]) -> str:
    """Text such as "6 of 8 ranks have started; none of node-c."; "" if no rank is missing.

    ``idle_nodes`` are connected to the hub and have no process of this job.
    """
    of_role = [seat for seat in seats if seat.role == role]
    world_size = max((seat.world_size for seat in of_role), default=-1)
    # several roles may share one world: count each rank number once
    of_world = [seat for seat in seats if seat.world_size == world_size]
    numbers = {seat.rank for seat in of_world if seat.rank >= 0}
    num_here = len(numbers) + sum(seat.rank < 0 for seat in of_role)
    if num_here >= world_size:
        return ""
    nodes = ", ".join(sorted(idle_nodes))
    absent = absent_text("rank", numbers, world_size)
    missing = f"none of {nodes}" if nodes else f"{absent} never joined"
    return sentences.RANKS_MISSING(num_here=num_here, num_ranks=world_size, missing=missing)


def has_progressed(
    reached: Iterable[Mapping[str, int]], elsewhere: Mapping[str, int]
) -> bool | None:
    """Whether ranks that ``reached`` these sequence numbers must have progressed since.

    ``elsewhere``: the latest sequence numbers of ranks on connected nodes. If such a number is two
    higher, a collective in between is complete, and it needed all ranks. None without a common
    group.
    """
    comparable = [numbers for numbers in reached if numbers.keys() & elsewhere.keys()]
    if not comparable:
        return None
    return all(
        any(elsewhere.get(group, -1) >= number + 2 for group, number in numbers.items())
        for numbers in comparable
    )


@dataclass(frozen=True, slots=True)
class Peers:
    """Ranks of connected nodes that wait in a collective, and the longest wait."""

    waiting: tuple[str, ...] = ()
    wait_seconds: float = 0.0


def is_lost(presence: Presence, peers: Peers) -> bool:
    """Whether ranks of the job are lost with this node, as far as the hub can tell."""
    if presence.is_connected or presence.has_left or not presence.labels:
        return False
    if presence.reach != "no answer":
        return False
    needed_seconds = WAIT_LONGER_SECONDS if presence.has_progressed else WAIT_SECONDS
    if peers.waiting and peers.wait_seconds >= needed_seconds:
        return True
    return not presence.has_progressed and presence.silent_seconds >= ALONE_SECONDS


def lost_verdict(
    role: str, presence: Presence, labels: Sequence[str], peers: Peers, now_seconds: float
) -> Verdict:
    """``labels``: the ranks of this role that were alive in the node's last report."""
    ranks, waiting = labels_text(labels), labels_text(peers.waiting)
    does = "waits" if len(peers.waiting) == 1 else "wait"
    wait = f" {capitalized(waiting)} {does} for it." if peers.waiting else ""
    seconds = seconds_text(presence.silent_seconds)
    return Verdict(
        kind="crash",
        state="found",
        role=role,
        summary=NODE_LOST(node=presence.node, ranks=ranks, seconds=seconds, wait=wait),
        ranks=tuple(labels),
        cause=CAUSE,
        since_seconds=now_seconds - presence.silent_seconds,
        evidence=_evidence(presence, peers),
        action=NODE_LOST.action_text(node=presence.node),
    )


def with_lost_nodes(verdicts: Iterable[Verdict], lost: Sequence[Verdict]) -> list[Verdict]:
    """All verdicts; a lost node explains later crashes of its role, so it replaces them."""
    judged = list(verdicts)
    shown = {v.role: v for v in lost if not any(_is_earlier(crash, v) for crash in judged)}
    others = [v for v in judged if v.kind != "crash" or v.role not in shown]
    return [*others, *shown.values()]


def _is_earlier(crash: Verdict, lost: Verdict) -> bool:
    """Whether this is a crash of the same role that began before the node was lost."""
    if (crash.kind, crash.role, crash.state) != ("crash", lost.role, "found"):
        return False
    return (crash.since_seconds or 0.0) < (lost.since_seconds or 0.0)


def _evidence(presence: Presence, peers: Peers) -> tuple[str, ...]:
    lines = [
        f"{presence.node}: last report {seconds_text(presence.silent_seconds)} ago",
        f"{presence.node}: no TCP connection to its agent",
    ]
    if peers.waiting:
        lines.append(
            f"{labels_text(peers.waiting)}: blocked in a collective for "
            f"{seconds_text(peers.wait_seconds)}"
        )
    return tuple(lines)
