"""How what is pushed stands: rows that trackers and OpenTelemetry give and /metrics renders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TrackerRow:
    """How one run's writing to one tracker stands.

    ``num_dropped_steps`` were closed after it had failed; ``num_late_values`` came for a step that
    was written already.
    """

    tracker: str
    run: str
    is_active: bool
    num_steps: int
    num_dropped_steps: int
    num_late_values: int


class TrackerSource(Protocol):
    """What the renderers of trackers ask."""

    def rows(self) -> tuple[TrackerRow, ...]:
        """As of now; cheap, never blocks."""


@dataclass(frozen=True, slots=True)
class OtlpRow:
    """How the pushing of one signal stands: "metrics" (points) or "traces" (spans)."""

    signal: str
    is_active: bool
    num_sent: int
    num_failed: int
    num_dropped_spans: int = 0
    num_missed_steps: int = 0


class OtlpSource(Protocol):
    """What the renderers ask of an OpenTelemetry push."""

    def rows(self) -> tuple[OtlpRow, ...]:
        """As of now; cheap, never blocks."""
