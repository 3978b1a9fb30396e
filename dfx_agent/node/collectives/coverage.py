"""Counts how many of a group's collectives one rank recorded: unrecorded ones are not idle time."""

from __future__ import annotations

from dfx_agent.wire.records import DDP_GRADIENTS

_REPORT_AGE_NS = 10**9


class GroupCoverage:
    """GroupCoverage of one rank in one group, by the group's sequence numbers."""

    __slots__ = (
        "_base",
        "_begins_with_ddp",
        "_last",
        "_num_recorded",
        "_reported",
        "_reported_ns",
        "_trusted",
    )

    def __init__(self) -> None:
        self._base: int | None = None  # the number before the first recorded collective
        self._begins_with_ddp = False
        self._last = self._num_recorded = 0
        self._reported: int | None = None
        self._reported_ns = self._trusted = 0

    def record(self, operation: str, sequence: int) -> None:
        """Add a recorded collective. One of DDP's reducer covers all buckets since the last one."""
        if self._base is None:
            self._base = self._last = sequence - 1
            self._begins_with_ddp = operation == DDP_GRADIENTS
        if sequence > self._last:
            self._num_recorded += sequence - self._last if operation == DDP_GRADIENTS else 1
            self._last = sequence

    def report(self, num_enqueued: int, now_ns: int) -> None:
        """Add the group's own count. It is trusted after a second, when its records have arrived.

        A count that decreases belongs to a new group of the same name.
        """
        if self._reported is None or num_enqueued < self._reported:
            if self._reported is not None:
                self._base, self._last, self._num_recorded = None, 0, 0
            self._trusted, self._reported, self._reported_ns = 0, num_enqueued, now_ns
            return
        if now_ns - self._reported_ns >= _REPORT_AGE_NS:
            self._trusted = self._reported
        if num_enqueued > self._reported:
            self._reported, self._reported_ns = num_enqueued, now_ns

    def counts(self, first_enqueued: int, *, is_in_flight: bool) -> tuple[int, int]:
        """(recorded, enqueued) since the first report or record, whichever was earlier.

        A collective in flight has no record yet, so then only numbers up to the last record count.
        """
        base = first_enqueued if self._base is None else min(first_enqueued, self._base)
        last = self._last if is_in_flight else max(self._last, self._trusted)
        num_recorded = self._num_recorded
        if self._base is not None and self._begins_with_ddp:
            num_recorded += self._base - base
        return num_recorded, max(0, last - base)
