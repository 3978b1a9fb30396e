"""Divides ranks into cells that do the same work, by the layout of the job or by its messages.

Ranks of one pipeline stage with the same part of each layer do the same work on different data.
If a rank would be alone in its cell, ranks with other parts of the same layers are added, because
layers are split evenly. Experts are never mixed, because they receive different numbers of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from dfx_agent.facts.layout import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR, Layout, RankPosition
from dfx_agent.judge.straggler import sentences
from dfx_agent.wire.job_description import RankRange

# axes of a cell, finest first; the first division without a single rank is used
_LEVELS = ((PIPELINE, EXPERT, TENSOR, CONTEXT), (PIPELINE, EXPERT, TENSOR), (PIPELINE, EXPERT))
_WORDS = {
    PIPELINE: {"pp", "pipe", "pipeline", "pipelinemodelparallel", "pipelineparallel"},
    TENSOR: {"tp", "tensor", "model", "tensormodelparallel", "tensorparallel", "infertp"},
    DATA: {"dp", "ddp", "data", "fsdp", "dataparallel", "dpshard", "dpreplicate"},
    EXPERT: {"ep", "expert", "expertmodelparallel", "expertparallel"},
    CONTEXT: {"cp", "sp", "context", "contextparallel", "ulysses"},
}  # fmt: skip
_AXES = {word: axis for axis, words in _WORDS.items() for word in words}

_MOST_MEMBERS = 1 << 16


@dataclass(frozen=True, slots=True)
class Division:
    """Ranks of one role, divided by the work that they do."""

    cells: tuple[tuple[str, ...], ...]
    """Labels of ranks that do the same work."""
    stages: Mapping[str, int] = field(default_factory=dict)
    """Pipeline stage by rank, from 0; empty if there is only one stage."""
    chains: Mapping[str, str] = field(default_factory=dict)
    """By rank: the same text for ranks that process the same batch one after the other."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Node by rank, if known."""
    doubt: str = ""
    """Why ranks cannot be compared; "" if they can."""
    is_known: bool = True
    """Whether ranks of a cell are known to do the same work; otherwise it is assumed."""

    @property
    def is_plain(self) -> bool:
        """Whether all ranks do the same work, on one node."""
        return len(self.cells) == 1 and not self.stages and len(set(self.nodes.values())) < 2

    @property
    def num_stages(self) -> int:
        return len(set(self.stages.values()))


def axis_of(description: str) -> str:
    """The axis of a process group, from its description; "" if unknown."""
    text = re.sub(r"^mesh_|_group$", "", description.lower())
    return _AXES.get(re.sub(r"[^a-z]", "", text), "")


def divided(layout: Layout, ranks: Iterable[str]) -> Division:
    """The division of these ranks; all are in one cell if nothing is known about them."""
    labels = tuple(ranks)
    places = {label: layout.places[label] for label in labels if label in layout.places}
    nodes = {label: place.node for label, place in places.items() if place.node}
    placed = _placed(layout, labels, places)
    if placed is None:
        return Division((labels,), nodes=nodes, doubt=sentences.UNCLEAR_LAYOUT())
    coordinates, shared = placed
    cells = _cells(labels, coordinates, shared)
    stages = {label: coordinates[label][PIPELINE] for label in labels if PIPELINE in shared}
    if len(set(stages.values())) < 2:
        stages = {}
    is_known = bool(shared) or _share_all_groups(layout, labels)
    return Division(
        cells, stages, _same_batch(labels, coordinates, stages, cells), nodes, is_known=is_known
    )


def _share_all_groups(layout: Layout, labels: tuple[str, ...]) -> bool:
    """Whether every process group contains all these ranks, so that there is no pipeline."""
    sizes = [group.num_ranks for group in layout.groups if group.num_ranks > 1]
    return bool(sizes) and min(sizes) >= len(labels)


def coordinates_of(layout: Layout, ranks: Iterable[str]) -> dict[str, dict[str, int]]:
    """Coordinates of each rank on the axes on which these ranks differ; {} if unknown."""
    labels = tuple(ranks)
    places = {label: layout.places[label] for label in labels if label in layout.places}
    placed = _placed(layout, labels, places)
    if placed is None:
        return {}
    numbers: dict[str, set[int]] = {}
    for place in placed[0].values():
        for axis, number in place.items():
            numbers.setdefault(axis, set()).add(number)
    axes = {axis for axis, found in numbers.items() if len(found) > 1}
    return {
        label: {axis: number for axis, number in sorted(place.items()) if axis in axes}
        for label, place in placed[0].items()
    }


def _placed(
    layout: Layout, labels: tuple[str, ...], places: Mapping[str, RankPosition]
) -> tuple[dict[str, dict[str, int]], set[str]] | None:
    """(coordinates, axes that all ranks have); None if messages between ranks form no pipeline."""
    coordinates = _coordinates(layout, places)
    axes = [set(numbers) for numbers in coordinates.values()]
    shared = set.intersection(*axes) if axes and len(axes) == len(labels) else set()
    if PIPELINE in shared or not any(place.neighbours for place in places.values()):
        return coordinates, shared
    chains = _chains(places)
    if chains is None:
        return None
    for chain in chains:
        for number, label in enumerate(chain):
            coordinates[label] = {**coordinates[label], PIPELINE: number}
    return coordinates, shared | ({PIPELINE} if chains and len(places) == len(labels) else set())


def _coordinates(layout: Layout, places: Mapping[str, RankPosition]) -> dict[str, dict[str, int]]:
    """Coordinates that the job reports, completed by process groups with a known axis."""
    coordinates = {label: dict(place.coordinates) for label, place in places.items()}
    labels = {place.rank: label for label, place in places.items() if place.rank >= 0}
    for group in layout.groups:
        axis = axis_of(group.description)
        if not axis or not group.is_whole or group.num_ranks > _MOST_MEMBERS:
            continue
        members = sorted(rank for stride in group.members for rank in _ranks(stride))
        for number, rank in enumerate(members):
            if rank in labels:
                coordinates[labels[rank]].setdefault(axis, number)
    return coordinates


def _ranks(stride: RankRange) -> range:
    return range(stride.first, stride.last + 1, max(1, stride.step))


def _cells(
    labels: tuple[str, ...], coordinates: Mapping[str, Mapping[str, int]], shared: set[str]
) -> tuple[tuple[str, ...], ...]:
    cells: dict[tuple[int, ...], list[str]] = {}
    for axes in _LEVELS:
        cells = {}
        for label in labels:
            numbers = coordinates.get(label, {})
            key = tuple(numbers[axis] for axis in axes if axis in shared)
            cells.setdefault(key, []).append(label)
        if all(len(cell) > 1 for cell in cells.values()):
            break
    return tuple(tuple(cell) for _, cell in sorted(cells.items()))


def _same_batch(
    labels: Iterable[str],
    coordinates: Mapping[str, Mapping[str, int]],
    stages: Mapping[str, int],
    cells: Iterable[Iterable[str]],
) -> dict[str, str]:
    """By rank: the same text for ranks that process the same batch.

    These ranks have the same coordinates on all axes except the pipeline. If the data axis is
    unknown, ranks are assumed to have the same order in each stage.
    """
    if not stages:
        return {}
    if all(DATA in coordinates[label] for label in labels):
        return {
            label: "/".join(
                f"{axis}{number}"
                for axis, number in sorted(coordinates[label].items())
                if axis != PIPELINE
            )
            for label in labels
        }
    return {label: str(number) for cell in cells for number, label in enumerate(cell)}


def _chains(places: Mapping[str, RankPosition]) -> list[list[str]] | None:
    """Pipelines as ordered ranks, from the messages between ranks.

    A pipeline is a chain, or a ring if each rank has several parts of the model. Stages have the
    order of their ranks in every framework. Returns [] if one rank serves all others, and None if
    the messages form no known pattern.
    """
    labels = {place.rank: label for label, place in places.items() if place.rank >= 0}
    links: dict[int, set[int]] = {}
    for place in places.values():
        for other in place.neighbours:
            if other in labels and other != place.rank and place.rank >= 0:
                links.setdefault(place.rank, set()).add(other)
                links.setdefault(other, set()).add(place.rank)
    chains, left = [], set(links)
    while left:
        chain = _reachable(links, min(left))
        left -= chain
        if _is_star(links, chain):
            return []
        ordered = sorted(chain)
        if not all(two in links[one] for one, two in pairwise(ordered)):
            return None
        if any(len(links[rank]) > 2 for rank in chain):
            return None
        chains.append([labels[rank] for rank in ordered])
    is_even = len({len(chain) for chain in chains}) < 2
    return chains if is_even and sum(map(len, chains)) == len(places) else None


def _is_star(links: Mapping[int, set[int]], ranks: set[int]) -> bool:
    """Whether one rank exchanges messages with all others, as a rank that distributes weights."""
    num_links = sorted(len(links[rank]) for rank in ranks)
    return num_links[-1] > 2 and num_links[-2] == 1


def _reachable(links: Mapping[int, set[int]], first: int) -> set[int]:
    seen, queue = {first}, [first]
    while queue:
        news = links[queue.pop()] - seen
        seen |= news
        queue += news
    return seen
