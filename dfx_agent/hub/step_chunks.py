"""Short steps told together, by numbers: nodes that know nothing of each other cut alike.

Steps of one chunk have the same number but for its last bits, as many of them as are needed for
``LEAST_SECONDS``. A chunk is told when the next one begins. What it tells is the mean step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfx_agent.facts.short_steps import mean_step
from dfx_agent.facts.steps import LEAST_SECONDS, Step

_MOST_BITS = 10


class StepChunks:
    """One role; ``told`` are the steps as they close."""

    def __init__(self) -> None:
        self._bits = 0
        self._gathered: list[Step] = []

    def told(self, steps: Iterable[Step]) -> Iterator[Step]:
        """What is whole by now."""
        for step in steps:
            if self._gathered and not self._belongs(step):
                yield self._taken()
            if not self._gathered:
                self._bits = _bits(step)
            self._gathered.append(step)
            if not self._bits:
                yield self._taken()

    def _belongs(self, step: Step) -> bool:
        first = self._gathered[0]
        is_same = first.step >> self._bits == step.step >> self._bits
        return is_same and first.ranks.keys() == step.ranks.keys()

    def _taken(self) -> Step:
        gathered, self._gathered = self._gathered, []
        return mean_step(gathered) if len(gathered) > 1 else gathered[0]


def _bits(step: Step) -> int:
    """So many steps as this one last long enough: 2 to the power of it."""
    seconds = min(of.wall_seconds for of in step.ranks.values())
    return next(
        (bits for bits in range(_MOST_BITS) if seconds * 2**bits >= LEAST_SECONDS), _MOST_BITS
    )
