"""Parallel layout of one role, from the layouts that its ranks on this node reported."""

from __future__ import annotations

from collections.abc import Collection

from dfx_agent.facts.layout import NO_LAYOUT, Layout, ProcessGroup, RankPosition
from dfx_agent.node.process import Process


class LayoutWatch:
    """Caches the layout of one role; a new value is built only when a rank reports a change."""

    def __init__(self) -> None:
        self._versions: list[tuple[str, int]] = []
        self._layout = NO_LAYOUT

    def layout(self, ranks: Collection[Process]) -> Layout:
        """The current layout. Groups list ranks of the whole job, not only of this node."""
        versions = [(process.label, process.follower.layout.version) for process in ranks]
        if versions != self._versions:
            self._versions = versions
            groups: dict[str, ProcessGroup] = {}
            for process in ranks:
                groups |= process.follower.layout.groups
            places = {process.label: _place(process) for process in ranks}
            self._layout = Layout(places, tuple(groups.values()))
        return self._layout


def _place(process: Process) -> RankPosition:
    layout, identity = process.follower.layout, process.follower.identity
    return RankPosition(
        identity.rank,
        identity.host,
        {axis: index for axis, (index, _) in layout.places.items()},
        {axis: size for axis, (_, size) in layout.places.items()},
        layout.peers,
    )
