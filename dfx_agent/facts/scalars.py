"""Numbers that processes report, and updates that an optimizer made or left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dfx_agent.facts.seat import ProcessId


class ScalarRecord(NamedTuple):
    """One value of one native key, as the guest sent it; ``in_step``: where the process was.

    ``time_ns`` is on its host's monotonic clock.
    """

    key: str
    value: float
    step: int | None
    time_ns: int
    in_step: int | None = None


@dataclass(frozen=True, slots=True)
class ToldScalars:
    """What one process reported since the reading before, by the framework's own names.

    ``epoch_offset_ns``: Unix time less its host's monotonic clock.
    """

    process: ProcessId
    framework: str
    scalars: tuple[ScalarRecord, ...]
    epoch_offset_ns: int

    def epoch_seconds(self, scalar: ScalarRecord) -> float:
        """Unix time at which it was told."""
        return (scalar.time_ns + self.epoch_offset_ns) / 1e9


class UpdateCounts(NamedTuple):
    """Updates of one process since it began: made, and left out by its gradient scaler.

    ``step`` is the one it is in, ``event_seconds`` the Unix time of its newest record.
    """

    process: ProcessId
    step: int | None
    event_seconds: float
    num_made: float
    num_left_out: float
