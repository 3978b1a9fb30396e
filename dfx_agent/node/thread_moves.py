"""Which threads of a process train, and when those moved last.

A heartbeat or a metrics thread goes on while the thread that trains is stuck: what it records is no
sign of life of that one. Who begins steps, or takes part in the collectives of all ranks, trains.
Threads of autograd record inside a stage of those; who was seen to record while no such stage was
open goes its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from dfx_agent.node.segments.records import Collective
from dfx_agent.node.time.account import SpanEvent
from dfx_agent.wire.records import COLLECTIVES, DDP_GRADIENTS, KIND_MASK, RECORD, STAGE, STEP, WAIT

_FIELDS = Struct("@16xQ24xIH10x")  # t1_ns, thread, kind
_MOVES = COLLECTIVES | {STAGE, WAIT, STEP}
_DEFAULT_GROUP = "0"
_ENOUGH_TIMES, _MAX_THREADS = 2, 256


class ThreadMoves:
    """Of one process; ``take`` after each reading.

    ``moved_ns``: when its threads that train last did anything that shows, ``others_ns``: when the
    others did; both 0 while all of its records are of threads that train.
    """

    def __init__(self) -> None:
        self.moved_ns = self.others_ns = 0
        self._trainers: set[int] = set()
        self._times_apart: dict[int, int] = {}
        self._is_shared = False

    @property
    def has_helpers(self) -> bool:
        """Whether threads that do not train record on their own."""
        return any(self.is_helper(thread) for thread in self._times_apart)

    def is_helper(self, thread: int) -> bool:
        """Whether it was seen to go its own way, and does not train."""
        apart = self._times_apart.get(thread, 0) >= _ENOUGH_TIMES
        return apart and thread not in self._trainers

    def take(
        self,
        packed: bytearray,
        inflight: Sequence[SpanEvent],
        step_thread: int,
    ) -> None:
        """The records of one reading, what is open after it, and who began the newest step."""
        self._trains(step_thread)
        if not self._is_shared:
            self._is_shared = self._seems_shared(packed, inflight)
        if self._is_shared and self._trainers:
            self._note(_newest(packed), inflight)

    def note_collective(self, told: Collective, thread: int) -> None:
        """One that this thread took part in, before the ``take`` of its reading."""
        if told.group == _DEFAULT_GROUP or told.operation == DDP_GRADIENTS:
            self._trains(thread)

    def _trains(self, thread: int) -> None:
        if thread and len(self._trainers) < _MAX_THREADS:
            self._trainers.add(thread)

    def _seems_shared(self, packed: bytearray, inflight: Sequence[SpanEvent]) -> bool:
        """Whether another thread records: by one record a reading, as to look at all costs."""
        seen = {event.thread for event in inflight}
        if packed:
            _, thread, kind = _FIELDS.unpack_from(packed, len(packed) - RECORD.size)
            seen |= {thread} if kind & KIND_MASK in _MOVES else set()
        return bool(self._trainers) and not seen <= self._trainers | {0}

    def _note(self, newest: dict[int, int], inflight: Sequence[SpanEvent]) -> None:
        begins = [event.begin_ns for event in inflight if event.thread in self._trainers]
        ends = [ns for thread, ns in newest.items() if thread in self._trainers]
        own_ns = max(self.moved_ns, *begins, *ends, 0)
        for thread, ns in newest.items():
            if thread in self._trainers or not thread:
                continue
            self.others_ns = max(self.others_ns, ns)
            if not begins and ns > own_ns and len(self._times_apart) < _MAX_THREADS:
                self._times_apart[thread] = self._times_apart.get(thread, 0) + 1
            elif begins and not self.is_helper(thread):
                own_ns = max(own_ns, ns)
        self.moved_ns = own_ns


def _newest(packed: bytearray) -> dict[int, int]:
    """When each thread ended what it recorded last."""
    newest: dict[int, int] = {}
    for end_ns, thread, kind in _FIELDS.iter_unpack(packed):
        if kind & KIND_MASK in _MOVES and end_ns > newest.get(thread, 0):
            newest[thread] = end_ns
    return newest
