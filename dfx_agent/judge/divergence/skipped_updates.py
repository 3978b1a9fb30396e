"""Updates that a gradient scaler leaves out one after the other: nothing is learned any more.

A scaler overflows now and then by design. It halves its scale then, 16 to 24 times in a row where a
run begins; gradients that are NaN at every scale are skipped for ever. No step ends then, and
neither loss nor gradient norm is told: nothing else would notice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dfx_agent.judge.words import labels_text
from dfx_agent.node.process import Process
from dfx_agent.rules.declared.stability import NO_UPDATE
from dfx_agent.snapshot import Verdict

# a scale of 2^16 is 2^-24 by then
TOO_MANY_IN_A_ROW = 40


@dataclass
class _Row:
    """Of one process: counters as they were last read, and the updates left out since a step."""

    num_steps: float = 0.0
    num_skipped: float = 0.0
    in_a_row: float = 0.0
    since_seconds: float = 0.0
    step: int | None = None


class SkippedUpdates:
    """One run; ``observe`` after each reading."""

    def __init__(self) -> None:
        self._rows: dict[Process, _Row] = {}

    def observe(self, processes: Iterable[Process]) -> None:
        """Those that live; others are forgotten."""
        self._rows = {process: self._row(process) for process in processes}

    def _row(self, process: Process) -> _Row:
        row = self._rows.get(process) or _Row()
        num_steps = process.counters.get("optimizer_steps", 0.0)
        num_skipped = process.counters.get("skipped_updates", 0.0)
        # where both came with one reading, the scaler goes on as it should
        if num_steps != row.num_steps:
            row.in_a_row = 0.0
        elif num_skipped != row.num_skipped:
            if not row.in_a_row:
                row.step = process.step
                row.since_seconds = process.follower.epoch_seconds(process.last_event_ns or 0)
            row.in_a_row += num_skipped - row.num_skipped
        row.num_steps, row.num_skipped = num_steps, num_skipped
        return row

    def verdict(self) -> Verdict | None:
        """None while every process makes steps now and then."""
        stuck = {p: row for p, row in self._rows.items() if row.in_a_row >= TOO_MANY_IN_A_ROW}
        if not stuck:
            return None
        first, row = min(stuck.items(), key=lambda each: each[1].since_seconds)
        labels = tuple(process.label for process in stuck)
        return Verdict(
            "divergence", "found", first.filed_as.role,
            f"{labels_text(labels)}: the gradient scaler has left out the last "
            f"{row.in_a_row:.0f} updates: the gradients are NaN or infinite at every scale, and "
            "nothing is learned",
            cause=NO_UPDATE, ranks=labels, step=row.step, since_seconds=row.since_seconds,
            evidence=tuple(map(_line, stuck.items())),
        )  # fmt: skip


def _line(each: tuple[Process, _Row]) -> str:
    process, row = each
    return (
        f"rank {process.label}: {row.num_steps:.0f} updates made, {row.num_skipped:.0f} left out, "
        f"the last {row.in_a_row:.0f} in a row"
    )
