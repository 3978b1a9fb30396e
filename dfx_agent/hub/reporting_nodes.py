"""Receives the documents of nodes: reads them, compares clocks and counts what was refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from dfx_agent.facts.document import loaded
from dfx_agent.facts.run import RunFacts
from dfx_agent.hub.clocks import NodeClock
from dfx_agent.snapshot import SegmentProblem

MAX_NODES = 10_240


@dataclass
class NodeCounts:
    """Documents of one node since this hub began: accepted, and refused with the latest reason."""

    num_taken: int = 0
    num_refused: int = 0
    problem: str = ""


class ReceivedFacts(NamedTuple):
    """A document that was read, and the clock of its sender."""

    facts: RunFacts
    clock: NodeClock


class ReportingNodes:
    """All nodes that send documents to a hub. All times are local and monotonic."""

    def __init__(self) -> None:
        self.counts: dict[str, NodeCounts] = {}
        self._clocks: dict[str, NodeClock] = {}
        self._received_ns: dict[str, int] = {}
        self._idle_ns: dict[str, int] = {}

    @contextmanager
    def receiving(self, document: bytes, sender: str, here_ns: int) -> Iterator[ReceivedFacts]:
        """Read a document; count it as refused if that, or the use of its facts, fails.

        ``sender`` is named if the document cannot be read.
        """
        try:
            facts = loaded(document)
            yield ReceivedFacts(facts, self._clock_of(facts, here_ns))
        except ValueError as error:
            self._refuse(sender or "an unknown node", str(error))
            raise
        self._counts_of(facts.node).num_taken += 1

    def _clock_of(self, facts: RunFacts, here_ns: int) -> NodeClock:
        """The clock of the sender. Raises: ValueError with a one-line message at too many nodes."""
        node = facts.node
        if node not in self._received_ns and len(self._received_ns) >= MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} nodes report to this hub: start another one")
        clock = self._clocks.setdefault(node, NodeClock())
        clock.see(facts.boot, facts.now_ns, here_ns)
        self._received_ns[node] = here_ns
        if facts.run:
            self._idle_ns.pop(node, None)
        else:
            self._idle_ns[node] = here_ns
        return clock

    def _refuse(self, node: str, reason: str) -> None:
        counts = self._counts_of(node)
        counts.num_refused, counts.problem = counts.num_refused + 1, reason

    def received_ns(self, node: str) -> int:
        """When its latest document arrived; 0 for a node that is not known."""
        return self._received_ns.get(node, 0)

    @property
    def idle(self) -> frozenset[str]:
        """Nodes that report that they have no run."""
        return frozenset(self._idle_ns)

    @property
    def num_documents(self) -> int:
        """How many were accepted."""
        return sum(counts.num_taken for counts in self.counts.values())

    def problems(self) -> Iterator[SegmentProblem]:
        """One problem for every node with a refused document."""
        for node, counts in self.counts.items():
            if counts.num_refused:
                num = counts.num_refused
                text = f"documents of {node} that were refused: {num}, the last: {counts.problem}"
                yield SegmentProblem(node, "facts", text)

    def remove_older(self, idle_ns: int, received_ns: int) -> None:
        """Nodes that were idle last before, and those that reported last before."""
        self._idle_ns = {node: ns for node, ns in self._idle_ns.items() if ns >= idle_ns}
        for node in [node for node, ns in self._received_ns.items() if ns < received_ns]:
            del self._received_ns[node], self._clocks[node]

    def _counts_of(self, node: str) -> NodeCounts:
        """Counts of this node; above the limit all further nodes share one entry."""
        if node not in self.counts and len(self.counts) >= 2 * MAX_NODES:
            node = "other nodes"
        return self.counts.setdefault(node, NodeCounts())
