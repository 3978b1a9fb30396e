"""Numbers that processes report, and updates that an optimizer made or left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer

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


def _columns(known: Iterable[ScalarRecord]) -> list[list[Any]]:
    return [list(column) for column in zip(*known, strict=True)]


def _rows(given: Any) -> Any:
    """Of what stood in JSON; what is no list of columns is left to the validation."""
    if not isinstance(given, list) or not all(isinstance(column, list) for column in given):
        return given
    return list(zip(*given, strict=True))


# in JSON by column: processes report the same keys, for the same step, at about the same time
ScalarColumns = Annotated[
    tuple[ScalarRecord, ...], PlainSerializer(_columns), BeforeValidator(_rows)
]


@dataclass(frozen=True, slots=True)
class ToldScalars:
    """What one process reported since the reading before, by the framework's own names.

    ``epoch_offset_ns``: Unix time less its host's monotonic clock.
    """

    process: ProcessId
    framework: str
    scalars: ScalarColumns
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
