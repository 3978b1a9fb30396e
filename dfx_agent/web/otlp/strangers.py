"""Who wants to tell the hub something, and shows a wrong token or none.

A node that is turned away is missing from its job, and its own words are on another host.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from dfx_agent.snapshot import SegmentProblem

_MAX_ADDRESSES = 64
_OTHERS = "other addresses"


@dataclass(slots=True)
class _Counts:
    num_refused: int = 0
    named: str = ""


class Strangers:
    """Told under the address: the name of a node is anybody's to take. Called from any thread."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self._lock = threading.Lock()

    def see(self, address: str, named: str) -> None:
        """One more request was refused; ``named``: what its sender calls itself."""
        with self._lock:
            is_one_too_many = address not in self._counts and len(self._counts) >= _MAX_ADDRESSES
            key = _OTHERS if is_one_too_many else address
            known = self._counts.setdefault(key, _Counts())
            known.num_refused, known.named = known.num_refused + 1, named or known.named

    def problems(self) -> tuple[SegmentProblem, ...]:
        """By address."""
        with self._lock:
            return tuple(
                SegmentProblem(address, "stranger", _text(address, known))
                for address, known in sorted(self._counts.items())
            )


def _text(address: str, known: _Counts) -> str:
    times = "once" if known.num_refused == 1 else f"{known.num_refused:,} times"
    named = f"; it calls itself {known.named}" if known.named else ""
    return (
        f"{address} was turned away {times}: a wrong token or none (401){named}; "
        "give it this hub's token with --join-token-file FILE"
    )
