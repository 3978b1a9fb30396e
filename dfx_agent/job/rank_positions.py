"""The position of each rank of a role in the layout of its job; computed again on a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dfx_agent.facts.layout import Layout
from dfx_agent.judge.straggler.comparable_ranks import coordinates_of

Positions = Mapping[str, Mapping[str, int]]  # rank -> axis -> its number along it


class RankPositions:
    """Layout positions of the ranks of one role."""

    def __init__(self) -> None:
        self._told: list[object] = []
        self._labels: list[str] = []
        self._places: Positions = {}

    def of(
        self, told: Sequence[object], labels: Sequence[str], layout: Callable[[], Layout]
    ) -> Positions:
        """Positions of ``labels``. ``told``: inputs of ``layout``, compared by identity."""
        if not self._is_of(told) or self._labels != list(labels):
            self._told, self._labels = list(told), list(labels)
            self._places = coordinates_of(layout(), labels)
        return self._places

    def _is_of(self, told: Sequence[object]) -> bool:
        if len(told) != len(self._told):
            return False
        return all(new is known for new, known in zip(told, self._told, strict=True))
