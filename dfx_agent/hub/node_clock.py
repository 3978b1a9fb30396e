"""Instants of a node's monotonic clock on the one of this host, by their age.

What a node tells takes a while to come, and after a cut a long one. The document that took
shortest says best how far apart the clocks are; all others are as old as they say beside it.
"""

from __future__ import annotations

_KEEP_NS = 300 * 10**9  # two clocks drift apart by less than 0.1 s in that time


class NodeClock:
    """Of one node; ``see`` every document of it. ``shift_ns`` is added to its instants."""

    def __init__(self) -> None:
        self.shift_ns = 0
        self._boot: str | None = None
        self._since_ns = 0
        self._newest = self._before = 0

    def see(self, boot: str, now_ns: int, received_ns: int) -> None:
        """A document as of ``now_ns`` of the node has come at ``received_ns`` of this host."""
        apart_ns = received_ns - now_ns
        if boot != self._boot:
            self._boot, self._since_ns = boot, received_ns
            self._newest = self._before = apart_ns
        elif received_ns - self._since_ns >= _KEEP_NS:
            self._since_ns = received_ns
            self._before, self._newest = self._newest, apart_ns
        self._newest = min(self._newest, apart_ns)
        self.shift_ns = min(self._newest, self._before)
