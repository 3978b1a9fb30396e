"""The position of each rank of a role in the layout of its job; computed again on a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dfx_agent.facts.layout import Layout
from dfx_agent.judge.straggler.comparable_ranks import coordinates_of

Positions = Mapping[str, Mapping[str, int]]  # rank -> axis -> its number along it


class RankPositions:
    """Layout positions of the ranks of one role."""

    def __init__(self) -> None:
        self._inputs: list[object] = []
        self._labels: list[str] = []
        self._places: Positions = {}

    def by_rank(
        self, inputs: Sequence[object], labels: Sequence[str], layout: Callable[[], Layout]
    ) -> Positions:
        """Positions of ``labels``. ``inputs``: inputs of ``layout``, compared by identity."""
        if not self._is_of(inputs) or self._labels != list(labels):
            self._inputs, self._labels = list(inputs), list(labels)
            self._places = coordinates_of(layout(), labels)
        return self._places

    def _is_of(self, inputs: Sequence[object]) -> bool:
        if len(inputs) != len(self._inputs):
            return False
        return all(new is old for new, old in zip(inputs, self._inputs, strict=True))
