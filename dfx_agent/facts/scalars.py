"""Numbers that processes report, and updates that an optimizer made or skipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer

from dfx_agent.facts.seat import ProcessId


class ScalarRecord(NamedTuple):
    """One value of one native key, as the guest sent it."""

    key: str
    value: float
    step: int | None
    """The step that was reported with the value."""
    time_ns: int
    """On the host's monotonic clock."""
    in_step: int | None = None
    """The step in which the process was."""


def _columns(records: Iterable[ScalarRecord]) -> list[list[Any]]:
    return [list(column) for column in zip(*records, strict=True)]


def _rows(content: Any) -> Any:
    """Convert columns of parsed JSON to rows; the validation handles anything else."""
    if not isinstance(content, list) or not all(isinstance(column, list) for column in content):
        return content
    return list(zip(*content, strict=True))


# in JSON by column: processes report the same keys, for the same step, at about the same time
ScalarColumns = Annotated[
    tuple[ScalarRecord, ...], PlainSerializer(_columns), BeforeValidator(_rows)
]


@dataclass(frozen=True, slots=True)
class ReportedScalars:
    """What one process reported since the last poll, with the framework's own names."""

    process: ProcessId
    framework: str
    scalars: ScalarColumns
    epoch_offset_ns: int
    """Unix time minus the host's monotonic clock."""

    def epoch_seconds(self, scalar: ScalarRecord) -> float:
        """Unix time of the report."""
        return (scalar.time_ns + self.epoch_offset_ns) / 1e9


class UpdateCounts(NamedTuple):
    """Optimizer updates of one process since its start."""

    process: ProcessId
    step: int | None
    """The current step of the process."""
    event_seconds: float
    """Unix time of its latest record."""
    num_made: float
    num_left_out: float
    """Updates that its gradient scaler skipped."""
