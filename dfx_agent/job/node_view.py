"""The view of one node without a hub: it sees only its own ranks of a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dfx_agent.facts.seat import Seat
from dfx_agent.judge.part_of_job import crashes_of_this_node, part_text
from dfx_agent.snapshot import Verdict


@dataclass(frozen=True, slots=True)
class NodeView:
    """The view of one node. ``others``: verdicts on processes without a guest."""

    seats: Sequence[Seat]
    others: Sequence[Verdict] = ()

    @property
    def part(self) -> str:
        """Text on the visible part of the job; "" if all of it is visible."""
        return part_text(self.seats)

    def of_ranks(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """Verdicts of this node; a crash may be caused by a crash on a node that is not visible."""
        return crashes_of_this_node(verdicts, self.seats)

    def of_all(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """All verdicts, with those on processes without a guest."""
        return *verdicts, *self.others
