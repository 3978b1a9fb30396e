"""The first time slices of a step, for timelines, in 16 bytes each: a node stores thousands."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from dfx_agent.node.time.sweep import IDLE, Owner, Stretches
from dfx_agent.snapshot import PieceKind
from dfx_agent.wire.records import STAGE

_MAX_PIECES = 256


@dataclass(slots=True)
class PieceNs:
    """A time slice of one process, on its monotonic clock."""

    kind: PieceKind
    name: str
    begin_ns: int
    end_ns: int


class Pieces:
    """The first 256 time slices of one step, without a gap; equal neighbours are joined."""

    __slots__ = ("_ends", "_owners", "num_omitted")

    def __init__(self) -> None:
        self.num_omitted = 0  # time slices after the 256th piece
        self._owners: list[Owner] = []
        self._ends = array("Q")

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def num_free(self) -> int:
        """How many more pieces fit."""
        return _MAX_PIECES - len(self._ends)

    def extend(self, stretches: Stretches) -> None:
        """Add time slices directly after the last one."""
        num_added = 0 if self.num_omitted else self._fill(stretches)
        self.num_omitted += len(stretches.ends) - num_added

    def rows(self, begin_ns: int) -> list[PieceNs]:
        """All pieces, oldest first; the first one began at ``begin_ns``."""
        found = []
        for owner, end_ns in zip(self._owners, self._ends, strict=True):
            found.append(PieceNs(_word(owner.kind), owner.name, begin_ns, end_ns))
            begin_ns = end_ns
        return found

    def idle(self, begin_ns: int, shortest_ns: int) -> list[tuple[int, int]]:
        """(begin, end) of idle pieces that have at least this length."""
        ends = zip(self._owners, [begin_ns, *self._ends], self._ends, strict=False)
        return [
            (begin, end)
            for owner, begin, end in ends
            if owner.kind == IDLE and end - begin >= shortest_ns
        ]

    def _fill(self, stretches: Stretches) -> int:
        """Add as many time slices as fit. Returns how many were added."""
        owners, ends = self._owners, self._ends
        last = owners[-1] if owners else None
        for num_added, (owner, end_ns) in enumerate(zip(*stretches, strict=True)):
            if last and owner.name == last.name and owner.kind == last.kind:
                ends[-1] = end_ns
            elif len(ends) == _MAX_PIECES:
                return num_added
            else:
                owners.append(owner)
                ends.append(end_ns)
                last = owner
        return len(stretches.ends)


def _word(kind: int) -> PieceKind:
    return "stage" if kind == STAGE else "idle" if kind == IDLE else "wait"
