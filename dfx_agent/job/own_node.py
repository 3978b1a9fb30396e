"""The local node as one node of a job, and its view of the job without a hub: its own ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.memory import MemoryFacts
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.hub.clocks import OWN_CLOCKS, NodeClock, Shift
from dfx_agent.hub.node_facts import NodeRun
from dfx_agent.judge.part_of_job import crashes_of_this_node, part_text
from dfx_agent.snapshot import Verdict


class OwnNode(NodeRun):
    """The local node: its facts are complete and on the local clocks.

    Call ``take`` for every reading: only growing lists are partial.
    """

    def __init__(
        self,
        facts: RunFacts,
        read_memory: Callable[[], Iterable[MemoryFacts]] = tuple,
        read_totals: Callable[[ProcessId], RankTotals | None] = lambda _process: None,
    ) -> None:
        """``read_memory``: reads living processes; called only when memory is judged.

        ``read_totals``: reads one process; called only when its row is built.
        """
        super().__init__(facts.node, NodeClock(), facts)
        self._read_memory, self._read_totals = read_memory, read_totals

    def take(self, facts: RunFacts, received_ns: int) -> bool:
        self.facts, self.received_ns, self.is_behind = facts, received_ns, False
        self._seats = {seat.id: seat for seat in facts.seats}
        self.ranks = {
            (role, rank.label): rank for role, ranks in facts.ranks.items() for rank in ranks
        }
        self.unjudged = {
            (role, rank.label): rank for role, ranks in facts.unjudged.items() for rank in ranks
        }
        self.engines = facts.engines or ()
        self.layouts = {steps.role: steps.layout for steps in facts.steps}
        return True

    def silent_seconds(self, *_: object) -> float:
        return 0.0

    def memory_facts(self) -> Mapping[ProcessId, MemoryFacts]:
        return {facts.process: facts for facts in self._read_memory()}

    def totals_of(self, process: ProcessId) -> RankTotals | None:
        return self._read_totals(process)

    def shift(self, *_: object) -> Shift:
        return OWN_CLOCKS

    def rank_on_local_clocks(self, place: tuple[str, str], *_: object) -> RankFacts:
        return self.ranks[place]


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
