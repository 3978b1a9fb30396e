"""Detects a gradient scaler that skips every update, so that nothing is learned.

A scaler overflows from time to time by design, and halves its scale: 16 to 24 times in a row at the
start of a run. If gradients are NaN at every scale, it skips all updates. Then no step ends and
neither loss nor gradient norm is reported, so no other check notices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dfx_agent.catalogue.alerts.declared.stability import NO_UPDATE
from dfx_agent.facts.scalars import UpdateCounts
from dfx_agent.facts.seat import ProcessId
from dfx_agent.judge.divergence import sentences
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import Verdict

# by then a scale of 2^16 has become 2^-24
TOO_MANY_IN_A_ROW = 40


@dataclass
class _UpdateRow:
    """Counters of one process at the last reading."""

    num_made: float = 0.0
    num_left_out: float = 0.0
    in_a_row: float = 0.0
    """Updates that were skipped in a row up to now, since ``step``."""
    since_seconds: float = 0.0
    step: int | None = None


class SkippedUpdates:
    """Skipped updates of the processes of one run."""

    def __init__(self) -> None:
        self._rows: dict[ProcessId, _UpdateRow] = {}

    def observe(self, counts: Iterable[UpdateCounts]) -> None:
        """Process a reading: the counters of all living processes. Others are dropped."""
        self._rows = {process.process: self._row(process) for process in counts}

    def _row(self, counts: UpdateCounts) -> _UpdateRow:
        row = self._rows.get(counts.process) or _UpdateRow()
        # if both counters moved in one reading, the scaler works
        if counts.num_made != row.num_made:
            row.in_a_row = 0.0
        elif counts.num_left_out != row.num_left_out:
            if not row.in_a_row:
                row.step, row.since_seconds = counts.step, counts.event_seconds
            row.in_a_row += counts.num_left_out - row.num_left_out
        row.num_made, row.num_left_out = counts.num_made, counts.num_left_out
        return row

    def verdict(self) -> Verdict | None:
        """The finding; None while every process makes updates from time to time."""
        stuck = {
            process: row for process, row in self._rows.items() if row.in_a_row >= TOO_MANY_IN_A_ROW
        }
        if not stuck:
            return None
        first, row = min(stuck.items(), key=lambda item: item[1].since_seconds)
        labels = tuple(process.label for process in stuck)
        return Verdict(
            "divergence", "found", first.role,
            sentences.UPDATES_SKIPPED(
                ranks=labels_text(labels), num_updates=f"{row.in_a_row:.0f}"
            ),
            cause=NO_UPDATE, ranks=labels, step=row.step, since_seconds=row.since_seconds,
            evidence=tuple(_line(process, counters) for process, counters in stuck.items()),
        )  # fmt: skip


def _line(process: ProcessId, row: _UpdateRow) -> str:
    return (
        f"rank {process.label}: {row.num_made:.0f} updates made, {row.num_left_out:.0f} left out, "
        f"the last {row.in_a_row:.0f} in a row"
    )
