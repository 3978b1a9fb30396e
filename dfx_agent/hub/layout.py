"""The layout of a role over all nodes: each tells of its own ranks and of their groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from dfx_agent.facts.layout import Layout, Place, ProcessGroup

# a node, what it told, and how its ranks are called in the job
Told = tuple[str, Layout, Callable[[str], str]]


def merged(told: Iterable[Told]) -> Layout:
    """Nodes as they are called in the job; of a group the most that anybody told of its members."""
    places: dict[str, Place] = {}
    groups: dict[str, ProcessGroup] = {}
    for node, layout, label in told:
        places |= {label(rank): replace(of, node=node) for rank, of in layout.places.items()}
        for group in layout.groups:
            known = groups.get(group.name)
            if known is None or (group.is_whole and not known.is_whole):
                groups[group.name] = group
    return Layout(places, tuple(groups.values()))
