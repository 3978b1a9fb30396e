"""Which nodes of a job are connected, never joined, are disconnected, or are lost.

A disconnected agent says nothing about its ranks. Two other facts do: whether the ranks still take
part in collectives with other nodes, and whether their host answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.seat import Seat
from dfx_agent.job import sentences
from dfx_agent.judge.words import absent_text, labels_text

SILENT_SECONDS = 15.0

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
