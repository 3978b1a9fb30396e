"""Updates that a gradient scaler leaves out one after the other: nothing is learned any more.

A scaler overflows now and then by design. It halves its scale then, 16 to 24 times in a row where a
run begins; gradients that are NaN at every scale are skipped for ever. No step ends then, and
neither loss nor gradient norm is told: nothing else would notice.
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

# a scale of 2^16 is 2^-24 by then
TOO_MANY_IN_A_ROW = 40


@dataclass
class _Row:
    """Of one process: counters as they were last read, and the updates left out since a step."""

    num_made: float = 0.0
    num_left_out: float = 0.0
    in_a_row: float = 0.0
    since_seconds: float = 0.0
    step: int | None = None


class SkippedUpdates:
    """One run; ``observe`` after each reading."""

    def __init__(self) -> None:
        self._rows: dict[ProcessId, _Row] = {}

    def observe(self, counts: Iterable[UpdateCounts]) -> None:
        """Those that live; others are forgotten."""
        self._rows = {told.process: self._row(told) for told in counts}

    def _row(self, told: UpdateCounts) -> _Row:
        row = self._rows.get(told.process) or _Row()
        # where both came with one reading, the scaler goes on as it should
        if told.num_made != row.num_made:
            row.in_a_row = 0.0
        elif told.num_left_out != row.num_left_out:
            if not row.in_a_row:
                row.step, row.since_seconds = told.step, told.event_seconds
            row.in_a_row += told.num_left_out - row.num_left_out
        row.num_made, row.num_left_out = told.num_made, told.num_left_out
        return row

    def verdict(self) -> Verdict | None:
        """None while every process makes steps now and then."""
        stuck = {p: row for p, row in self._rows.items() if row.in_a_row >= TOO_MANY_IN_A_ROW}
        if not stuck:
            return None
        first, row = min(stuck.items(), key=lambda each: each[1].since_seconds)
        labels = tuple(process.label for process in stuck)
        return Verdict(
            "divergence", "found", first.role,
            sentences.UPDATES_SKIPPED(
                ranks=labels_text(labels), num_updates=f"{row.in_a_row:.0f}"
            ),
            cause=NO_UPDATE, ranks=labels, step=row.step, since_seconds=row.since_seconds,
            evidence=tuple(map(_line, stuck.items())),
        )  # fmt: skip


def _line(each: tuple[ProcessId, _Row]) -> str:
    process, row = each
    return (
        f"rank {process.label}: {row.num_made:.0f} updates made, {row.num_left_out:.0f} left out, "
        f"the last {row.in_a_row:.0f} in a row"
    )
