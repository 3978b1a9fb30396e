"""The layout of a role, from what each of its ranks here has told."""

from __future__ import annotations

from collections.abc import Collection

from dfx_agent.facts.layout import NOT_TOLD, Layout, Place, ProcessGroup
from dfx_agent.node.process import Process


class LayoutWatch:
    """The same value until somebody tells something new."""

    def __init__(self) -> None:
        self._told: list[tuple[str, int]] = []
        self._layout = NOT_TOLD

    def layout(self, ranks: Collection[Process]) -> Layout:
        """Groups by name, in which ranks are numbered over the whole job."""
        versions = [(process.label, process.follower.layout.version) for process in ranks]
        if versions != self._told:
            self._told = versions
            groups: dict[str, ProcessGroup] = {}
            for process in ranks:
                groups |= process.follower.layout.groups
            places = {process.label: _place(process) for process in ranks}
            self._layout = Layout(places, tuple(groups.values()))
        return self._layout


def _place(process: Process) -> Place:
    told, who = process.follower.layout, process.follower.identity
    return Place(
        who.rank,
        who.host,
        {axis: index for axis, (index, _) in told.places.items()},
        {axis: size for axis, (_, size) in told.places.items()},
        told.peers,
    )
