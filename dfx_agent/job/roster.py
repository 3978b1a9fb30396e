"""Who of the job is here: never joined, silent, cut off, gone, or gone with its node.

That an agent is silent says nothing of its ranks. What says it is whether they still take part in
what others do, and whether their host answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dfx_agent.durations import seconds_text
from dfx_agent.facts.seat import Seat
from dfx_agent.judge.words import labels_text

SILENT_SECONDS = 15.0

# whether a host answers on the port of its agent: "refused" it does, and nobody listens there
Reach = Literal["answers", "refused", "no answer"]


@dataclass(frozen=True, slots=True)
class Presence:
    """A node of the job as the hub knows it; ``labels``: its living ranks, as it told last.

    ``takes_part``: by what ranks elsewhere have done since, None where nothing says it.
    """

    node: str
    silent_seconds: float
    labels: tuple[str, ...] = ()
    has_left: bool = False
    takes_part: bool | None = None
    reach: Reach | None = None

    @property
    def is_heard(self) -> bool:
        return not self.has_left and self.silent_seconds < SILENT_SECONDS

    def __str__(self) -> str:
        """In one sentence; "" of one that is heard, or has nobody."""
        if self.is_heard or not self.labels:
            return ""
        whose, for_seconds = labels_text(self.labels), seconds_text(self.silent_seconds)
        runs = f"{whose} still {'take' if len(self.labels) > 1 else 'takes'} part in collectives"
        unknown = f"whether {whose} {'run' if len(self.labels) > 1 else 'runs'} is not known"
        if self.has_left:
            return f"the agent of {self.node} has ended: {runs if self.takes_part else unknown}"
        if self.reach == "no answer" and self.takes_part:
            return (
                f"{self.node} is cut off from this hub since {for_seconds}: its host does not "
                f"answer, {runs}"
            )
        if self.reach == "no answer":
            return (
                f"{self.node} is gone, or cut off from everybody, since {for_seconds}: neither its "
                f"host nor {whose} {'answer' if len(self.labels) > 1 else 'answers'}"
            )
        said = f"the agent of {self.node} has told nothing for {for_seconds}"
        return f"{said}: {runs if self.takes_part else unknown}"


def missing_text(seats: Sequence[Seat], role: str, idle_nodes: Iterable[str]) -> str:
    """As in "6 of 8 ranks are here; nothing from node-c"; "" where all are, or none is expected.

    ``idle_nodes`` are joined and have nobody of this job.
    """
    of_role = [seat for seat in seats if seat.role == role]
    world_size = max((seat.world_size for seat in of_role), default=-1)
    # several roles may share one world: each number counts once
    of_world = [seat for seat in seats if seat.world_size == world_size]
    known = {seat.rank for seat in of_world if seat.rank >= 0}
    num_here = len(known) + sum(seat.rank < 0 for seat in of_role)
    if num_here >= world_size:
        return ""
    absent = [str(rank) for rank in range(world_size) if rank not in known]
    nodes = ", ".join(sorted(idle_nodes))
    whose = f"nothing from {nodes}" if nodes else f"{labels_text(absent)} never joined"
    return f"{num_here} of {world_size} ranks are here; {whose}"


def takes_part(
    reached: Iterable[Mapping[str, int]], elsewhere: Mapping[str, int], *, is_moving: bool
) -> bool | None:
    """Whether ranks that ``reached`` these numbers of groups must have gone on since.

    ``elsewhere``: the newest numbers of ranks that tell; two further, and one between is over that
    needed all. ``is_moving``: those have moved lately.
    """
    known = [numbers for numbers in reached if numbers.keys() & elsewhere.keys()]
    if not known:
        return None
    return is_moving and all(
        any(elsewhere.get(group, -1) >= number + 2 for group, number in numbers.items())
        for numbers in known
    )
