"""The layout of a job: which rank has which part of the model and of the data.

The ranks themselves report it; nothing is inferred. Ranks are numbers in the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dfx_agent.wire.job_description import RankRange

# axes of a layout; frameworks have many other names for them
PIPELINE, TENSOR, DATA = "pipeline", "tensor", "data"
EXPERT, CONTEXT = "expert", "context"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One process group of the job."""

    name: str
    description: str
    """Text from the creator of the group; "" if there is none."""
    num_ranks: int
    """Size of the group."""
    members: tuple[RankRange, ...]
    """Members that the guest had room to report."""

    def has(self, rank: int) -> bool:
        """Whether the rank is known to be a member."""
        return any(ranks.has(rank) for ranks in self.members)

    @property
    def is_whole(self) -> bool:
        """Whether all members are known."""
        return sum(ranks.num_ranks for ranks in self.members) == self.num_ranks


@dataclass(frozen=True, slots=True)
class RankPosition:
    """The position of one rank in the layout."""

    rank: int = -1
    """Number in the job; -1 if unknown."""
    node: str = ""
    """Name of the node; "" if unknown."""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    """Index by axis, from 0, for axes that the rank reported."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Size by axis."""
    neighbours: tuple[int, ...] = ()
    """Ranks that it sends to or receives from."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one role."""

    places: Mapping[str, RankPosition] = field(default_factory=dict)
    """Position by label of the rank."""
    groups: tuple[ProcessGroup, ...] = ()
    """Process groups that the ranks reported."""


NO_LAYOUT = Layout()


def merged(layouts: Iterable[tuple[str, Layout, Callable[[str], str]]]) -> Layout:
    """Merge the layouts of one role over all nodes, with the most complete report of each group.

    ``layouts`` contains (node, its layout, function from a label on the node to one in the job).
    """
    places: dict[str, RankPosition] = {}
    groups: dict[str, ProcessGroup] = {}
    for node, layout, label in layouts:
        places |= {label(rank): replace(place, node=node) for rank, place in layout.places.items()}
        for group in layout.groups:
            earlier = groups.get(group.name)
            if earlier is None or (group.is_whole and not earlier.is_whole):
                groups[group.name] = group
    return Layout(places, tuple(groups.values()))
