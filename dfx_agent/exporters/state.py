"""State of pushes: trackers and OpenTelemetry provide these rows, /metrics shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TrackerRow:
    """State of writing one run to one tracker."""

    tracker: str
    run: str
    is_active: bool
    num_steps: int
    num_dropped_steps: int
    """Steps that closed after writing had failed."""
    num_late_values: int
    """Values that arrived after their step was written."""


class TrackerSource(Protocol):
    """State of trackers, for renderers."""

    def rows(self) -> tuple[TrackerRow, ...]:
        """The current state; cheap, never blocks."""


@dataclass(frozen=True, slots=True)
class OtlpRow:
    """State of pushing one signal: "metrics" (points) or "traces" (spans)."""

    signal: str
    is_active: bool
    num_sent: int
    num_failed: int
    num_dropped_spans: int = 0
    num_missed_steps: int = 0


class OtlpSource(Protocol):
    """State of an OpenTelemetry push, for renderers."""

    def rows(self) -> tuple[OtlpRow, ...]:
        """The current state; cheap, never blocks."""
