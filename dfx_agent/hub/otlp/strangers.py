"""Senders whose requests to the hub had a wrong token or none.

A refused node is missing from its job, and its own messages are on another host.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from dfx_agent.snapshot import SegmentProblem

_MAX_ADDRESSES = 64
_OTHERS = "other addresses"


@dataclass(slots=True)
class _SenderCounts:
    num_refused: int = 0
    named: str = ""


class Strangers:
    """Counts by address, because a sender may use any node's name. Thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[str, _SenderCounts] = {}
        self._lock = threading.Lock()

    def see(self, address: str, named: str) -> None:
        """One more request was refused; ``named``: the name that its sender gives itself."""
        with self._lock:
            is_one_too_many = address not in self._counts and len(self._counts) >= _MAX_ADDRESSES
            key = _OTHERS if is_one_too_many else address
            counts = self._counts.setdefault(key, _SenderCounts())
            counts.num_refused, counts.named = counts.num_refused + 1, named or counts.named

    def problems(self) -> tuple[SegmentProblem, ...]:
        """One problem per address."""
        with self._lock:
            return tuple(
                SegmentProblem(address, "stranger", _text(address, counts))
                for address, counts in sorted(self._counts.items())
            )


def _text(address: str, counts: _SenderCounts) -> str:
    times = "once" if counts.num_refused == 1 else f"{counts.num_refused:,} times"
    named = f"; it calls itself {counts.named}" if counts.named else ""
    return (
        f"{address} was turned away {times}: a wrong token or none (401){named}; "
        "give it this hub's token with --join-token-file FILE"
    )
