"""Assigns every rank of a job to one node. A rank that two nodes claim is shown twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dfx_agent.facts.seat import ProcessId, Seat

RankKey = tuple[str, str]  # role, label


@dataclass(frozen=True, slots=True)
class _Owner:
    node: str
    created_ns: int
    is_living: bool


class RankOwners:
    """Labels of ranks on all nodes. ``clashes``: rank -> nodes that claim it besides its owner.

    ``num_changes``: how often a rank got a new owner or lost its owner.
    """

    def __init__(self) -> None:
        self.clashes: dict[RankKey, set[str]] = {}
        self.num_changes = 0
        self._owners: dict[RankKey, _Owner] = {}
        self._of_node: dict[str, set[RankKey]] = {}

    def take(
        self, node: str, seats: Iterable[Seat], is_connected: Callable[[str], bool]
    ) -> set[str]:
        """Set the ranks that a node reports. Returns roles in which a process was replaced."""
        reported = list(seats)
        ranks = {(seat.role, seat.label) for seat in reported}
        for place in self._of_node.get(node, set()) - ranks:
            self._leave(node, place)
        self._of_node[node] = ranks
        return {seat.role for seat in reported if self._seat(node, seat, is_connected)}

    def owner(self, role: str, label: str) -> str:
        """The node that owns this rank; "" if there is none."""
        owner = self._owners.get((role, label))
        return "" if owner is None else owner.node

    def label(self, node: str, role: str, label: str) -> str:
        """Label in the job: the local label, with the node appended if another node owns it."""
        return label if self.owner(role, label) in {"", node} else f"{label}@{node}"

    def own_label(self, node: str, label: str) -> str:
        """The label that the node itself uses."""
        return label.removesuffix(f"@{node}")

    def process(self, node: str, process: ProcessId) -> ProcessId:
        called = self.label(node, process.role, process.label)
        return process if called == process.label else process._replace(label=called)

    def _seat(self, node: str, seat: Seat, is_connected: Callable[[str], bool]) -> bool:
        place, mine = (seat.role, seat.label), _Owner(node, seat.created_ns, seat.is_living)
        owner = self._owners.get(place)
        if owner is not None and owner.node != node:
            if owner.is_living and is_connected(owner.node):
                self._claim(node, place, is_living=seat.is_living)
                return False
            if not seat.is_living:
                return False
        self._claim(node, place, is_living=False)
        self.num_changes += owner is None or owner.node != node
        self._owners[place] = mine
        return owner is not None and owner.created_ns != seat.created_ns

    def _claim(self, node: str, place: RankKey, *, is_living: bool) -> None:
        if is_living:
            self.clashes.setdefault(place, set()).add(node)
        elif place in self.clashes:
            self.clashes[place].discard(node)
            if not self.clashes[place]:
                del self.clashes[place]

    def _leave(self, node: str, place: RankKey) -> None:
        self._claim(node, place, is_living=False)
        if self.owner(*place) == node:
            del self._owners[place]
            self.num_changes += 1
