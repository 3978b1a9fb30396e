"""Finds the threads of a process that train, and when they last made progress.

A heartbeat or metrics thread continues while the training thread is stuck, so its records are no
sign of progress. Threads that begin steps or take part in collectives of all ranks are training
threads. Autograd threads record inside a stage of a training thread. A thread that records while no
such stage is open is a helper.
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
    """Progress of the threads of one process; call ``read_records`` after each poll."""

    def __init__(self) -> None:
        # last progress of training threads, and of all others; 0 while only training threads record
        self.moved_ns = self.others_ns = 0
        self._trainers: set[int] = set()
        # how often each thread recorded outside all stages of training threads
        self._times_apart: dict[int, int] = {}
        self._is_shared = False

    @property
    def has_helpers(self) -> bool:
        """Whether threads that do not train write records."""
        return any(self.is_helper(thread) for thread in self._times_apart)

    def is_helper(self, thread: int) -> bool:
        """Whether the thread records independently of the training threads."""
        apart = self._times_apart.get(thread, 0) >= _ENOUGH_TIMES
        return apart and thread not in self._trainers

    def read_records(
        self,
        packed: bytearray,
        inflight: Sequence[SpanEvent],
        step_thread: int,
    ) -> None:
        """Update from the records and open spans of one poll, and the latest step's thread."""
        self._trains(step_thread)
        if not self._is_shared:
            self._is_shared = self._seems_shared(packed, inflight)
        if self._is_shared and self._trainers:
            self._note(_last_ends(packed), inflight)

    def note_collective(self, collective: Collective, thread: int) -> None:
        """A collective of this thread; call before ``read_records`` of the same poll."""
        if collective.group == _DEFAULT_GROUP or collective.operation == DDP_GRADIENTS:
            self._trains(thread)

    def _trains(self, thread: int) -> None:
        if thread and len(self._trainers) < _MAX_THREADS:
            self._trainers.add(thread)

    def _seems_shared(self, packed: bytearray, inflight: Sequence[SpanEvent]) -> bool:
        """Whether another thread records. Only one record per poll is checked, to save time."""
        seen = {event.thread for event in inflight}
        if packed:
            _, thread, kind = _FIELDS.unpack_from(packed, len(packed) - RECORD.size)
            seen |= {thread} if kind & KIND_MASK in _MOVES else set()
        return bool(self._trainers) and not seen <= self._trainers | {0}

    def _note(self, last_ends: dict[int, int], inflight: Sequence[SpanEvent]) -> None:
        begins = [event.begin_ns for event in inflight if event.thread in self._trainers]
        ends = [ns for thread, ns in last_ends.items() if thread in self._trainers]
        own_ns = max(self.moved_ns, *begins, *ends, 0)
        for thread, ns in last_ends.items():
            if thread in self._trainers or not thread:
                continue
            self.others_ns = max(self.others_ns, ns)
            if not begins and ns > own_ns and len(self._times_apart) < _MAX_THREADS:
                self._times_apart[thread] = self._times_apart.get(thread, 0) + 1
            elif begins and not self.is_helper(thread):
                own_ns = max(own_ns, ns)
        self.moved_ns = own_ns


def _last_ends(packed: bytearray) -> dict[int, int]:
    """Thread -> end of its latest record, in nanoseconds."""
    last_ends: dict[int, int] = {}
    for end_ns, thread, kind in _FIELDS.iter_unpack(packed):
        if kind & KIND_MASK in _MOVES and end_ns > last_ends.get(thread, 0):
            last_ends[thread] = end_ns
    return last_ends
