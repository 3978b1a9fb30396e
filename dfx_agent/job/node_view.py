"""What one node without a hub sees of a job: its own ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dfx_agent.facts.seat import Seat
from dfx_agent.judge.part_of_job import crashes_of_this_node, part_text
from dfx_agent.snapshot import Verdict


@dataclass(frozen=True, slots=True)
class NodeView:
    """``others``: verdicts about processes without a guest."""

    seats: Sequence[Seat]
    others: Sequence[Verdict] = ()

    @property
    def part(self) -> str:
        """What part of its job is seen here, in words; "" for all of it."""
        return part_text(self.seats)

    def of_ranks(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """A crash here may follow from one on a node that is not seen."""
        return crashes_of_this_node(verdicts, self.seats)

    def of_all(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """With those about processes without a guest."""
        return *verdicts, *self.others
