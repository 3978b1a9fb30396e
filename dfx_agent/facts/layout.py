"""How a job is laid out over its ranks: who has which part of the model and of the data.

As the ranks themselves tell it, nothing inferred. Ranks are numbers in the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dfx_agent.wire.job_description import RankRange

# axes along which jobs are laid out: frameworks have many names for them
PIPELINE, TENSOR, DATA = "pipeline", "tensor", "data"
EXPERT, CONTEXT = "expert", "context"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One process group; ``num_ranks`` are in it, those that a guest had room to tell are members.

    ``description`` is what its maker wrote to it, "" where that is nothing.
    """

    name: str
    description: str
    num_ranks: int
    members: tuple[RankRange, ...]

    def has(self, rank: int) -> bool:
        """Whether it is known to be a member."""
        return any(ranks.has(rank) for ranks in self.members)

    @property
    def is_whole(self) -> bool:
        """Whether all members are known."""
        return sum(ranks.num_ranks for ranks in self.members) == self.num_ranks


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's place. ``coordinates``: by axis, from 0; only axes that were told.

    ``sizes``: how many places an axis has. ``neighbours``: whom it sends to or receives from.
    ``rank`` is -1 and ``node`` is "" where that is not known.
    """

    rank: int = -1
    node: str = ""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    neighbours: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one role: a place for each rank by its label, and the process groups that they told."""

    places: Mapping[str, Place] = field(default_factory=dict)
    groups: tuple[ProcessGroup, ...] = ()


NOT_TOLD = Layout()


def merged(told: Iterable[tuple[str, Layout, Callable[[str], str]]]) -> Layout:
    """The layout of a role over all nodes; of a group the most that a node says of its members.

    ``told``: a node, the layout that it reports, and how its ranks are called in the job.
    """
    places: dict[str, Place] = {}
    groups: dict[str, ProcessGroup] = {}
    for node, layout, label in told:
        places |= {label(rank): replace(of, node=node) for rank, of in layout.places.items()}
        for group in layout.groups:
            known = groups.get(group.name)
            if known is None or (group.is_whole and not known.is_whole):
                groups[group.name] = group
    return Layout(places, tuple(groups.values()))
