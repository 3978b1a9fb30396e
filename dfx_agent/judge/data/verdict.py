"""The data verdict: names boundary, column, step and rank of each mismatch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dfx_agent.base.text import capitalized, joined
from dfx_agent.judge.data import sentences
from dfx_agent.judge.data.checks import Difference, Rank
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import Verdict

_HOLD_STEPS = 10
_MAX_LINES = 8


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference in one step."""

    difference: Difference
    step: int | None
    before: str
    """The earlier boundary; "" if the fault concerns one boundary only."""
    boundary: str
    ranks: tuple[Rank, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.boundary, self.difference.kind, self.difference.column

    def text(self) -> str:
        """As in "Rank 0, step 12, reward to actor_update: rewards belong to other samples."."""
        parts = [labels_text(label for _, label in self.ranks)] if self.ranks else []
        parts += [] if self.step is None else [f"step {self.step}"]
        parts.append(f"{self.before} to {self.boundary}" if self.before else f"at {self.boundary}")
        where = capitalized(", ".join(parts))
        return sentences.MISMATCH(where=where, difference=self.difference.text)


def data_verdict(
    role: str,
    boundaries: Sequence[str],
    mismatches: Collection[Mismatch],
    unsure: Sequence[Mismatch],
    latest_step: int | None,
    num_judged: int,
    skipped: tuple[int, int],
) -> Verdict:
    """``mismatches``: oldest first. ``skipped``: (steps, batches) that could not be judged."""
    lines = _skipped_lines(*skipped)
    recent = [row for row in mismatches if _is_recent(row, latest_step)]
    if recent:
        return _found(role, recent, mismatches, lines)
    if unsure:
        summary = joined([unsure[0].text(), sentences.IN_MANY_STEPS()])
        texts = tuple(row.text() for row in unsure[:_MAX_LINES])
        return Verdict("data", "insufficient evidence", role, summary, evidence=(*texts, *lines))
    if not num_judged:
        summary = sentences.NOT_COMPARED()
        return Verdict("data", "insufficient evidence", role, summary, evidence=lines)
    path = " to ".join(boundaries)
    summary = sentences.AGREE(path=path)
    judged = f"{num_judged} steps compared, the last is step {latest_step}"
    return Verdict("data", "clear", role, summary, step=latest_step, evidence=(judged, *lines))


def _found(
    role: str, recent: Sequence[Mismatch], mismatches: Collection[Mismatch], lines: tuple[str, ...]
) -> Verdict:
    """The finding: the first mismatch of the latest step. Other mismatches are evidence."""
    latest = {row.key: row for row in recent}
    last_step = max((row.step for row in recent if row.step is not None), default=None)
    worst = next(row for row in recent if row.step == last_step)
    steps = {row.step for row in mismatches if row.key == worst.key and row.step is not None}
    if steps:
        lines = (f"in {len(steps)} steps so far, first seen in step {min(steps)}", *lines)
    others = [row.text() for key, row in latest.items() if key != worst.key]
    return Verdict(
        kind="data",
        state="found",
        role=worst.ranks[0][0] if worst.ranks else role,
        summary=worst.text(),
        ranks=tuple(label for _, label in worst.ranks),
        stage=worst.boundary,
        cause=worst.difference.kind,
        step=worst.step,
        evidence=(*others[:_MAX_LINES], *lines),
    )


def _is_recent(row: Mismatch, latest_step: int | None) -> bool:
    return row.step is None or latest_step is None or row.step > latest_step - _HOLD_STEPS


def _skipped_lines(num_steps: int, num_crossings: int) -> tuple[str, ...]:
    lines = []
    if num_steps:
        lines.append(
            f"not compared: {num_steps} steps (records lost, or a process started or ended)"
        )
    if num_crossings:
        lines.append(f"{num_crossings} batches were incomplete: their records were overwritten")
    return tuple(lines)
