"""Compares two stored runs: what differs around them, and where the time of a step differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from dfx_agent.commands.compare.medians import (
    MIN_STEPS,
    Interval,
    median_interval,
    ratio_interval,
)
from dfx_agent.exporters.history.run_file import Fact
from dfx_agent.exporters.history.stored_run import StoredRun
from dfx_agent.snapshot import StepCell, StepRow

_MOST_STEPS = 500
# first steps compile, warm up and fill caches
_WARM_UP_STEPS = 3
IDLE = "outside all stages"


@dataclass(frozen=True, slots=True)
class StepParts:
    """One step: means over its ranks."""

    step: int
    wall_seconds: float
    seconds: Mapping[str, float]
    """By stage, "waiting: KIND", or ``IDLE``."""
    num_tokens: float | None
    """Of one rank; None if the job counts no tokens."""


def main_role(rows: Sequence[StepRow]) -> str | None:
    """The role with the most steps, and of those the one with the most ranks."""
    num_steps = Counter(row.role for row in rows)
    num_cells = Counter(row.role for row in rows for _ in row.cells)
    return max(num_steps, key=lambda role: (num_steps[role], num_cells[role]), default=None)


def step_parts(rows: Sequence[StepRow], role: str) -> list[StepParts]:
    """The latest steps of a role, without warm-up and without steps that a rank did not finish."""
    latest = {row.step: row for row in rows if row.role == role}  # of repeated steps the last
    steps = [latest[number] for number in sorted(latest)][_WARM_UP_STEPS:]
    return [_parts(row) for row in steps if row.cells and not row.missing_ranks][-_MOST_STEPS:]


def _parts(row: StepRow) -> StepParts:
    sums: Counter[str] = Counter()
    for cell in row.cells:
        sums.update(_seconds(cell))
    num_ranks = len(row.cells)
    tokens = [sum(_counted(cell.tokens)) for cell in row.cells if cell.tokens]
    return StepParts(
        row.step,
        sum(cell.split.wall_seconds for cell in row.cells) / num_ranks,
        {name: seconds / num_ranks for name, seconds in sums.items()},
        sum(tokens) / num_ranks if tokens and sum(tokens) else None,
    )


def _counted(tokens: Mapping[str, float]) -> Sequence[float]:
    """Tokens of a rank; a total that is reported replaces the sum of its kinds."""
    return (tokens["total"],) if "total" in tokens else tuple(tokens.values())


def _seconds(cell: StepCell) -> dict[str, float]:
    split = cell.split
    waits = {
        f"waiting: {kind}": sum(by_stage.values()) for kind, by_stage in split.wait_seconds.items()
    }
    return {**split.stage_seconds, **waits, IDLE: split.idle_seconds}


Unit = Literal["s", "s per token"]
# facts that differ between any two starts of one job and explain nothing
_EXPLAINS_NOTHING = {"dfx-agent", "$WORLD_SIZE"}


@dataclass(frozen=True, slots=True)
class RunData:
    """What is compared of one run."""

    run: StoredRun
    steps: Sequence[StepRow]
    facts: Sequence[Fact]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that one run has otherwise; "" where it is missing."""

    kind: str
    key: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class PartDifference:
    """A stage, a kind of wait or the step itself, in both runs."""

    part: str
    a: Interval
    b: Interval
    a_seconds: float
    """Median seconds per step, also if ``a`` is per token."""
    b_seconds: float
    share_ratio: float | None
    """Share of the difference of the step; None if the step does not differ."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result. ``problem``: why the runs cannot be compared; "" if they can."""

    a: str
    b: str
    problem: str
    differences: tuple[Difference, ...]
    role: str = ""
    num_steps_a: int = 0
    num_steps_b: int = 0
    unit: Unit = "s"
    ratio: Interval | None = None
    """Time of ``b`` / time of ``a``, of a step or of a token."""
    step: PartDifference | None = None
    parts: tuple[PartDifference, ...] = ()
    """Largest difference first."""

    @property
    def is_certain(self) -> bool:
        """Whether the interval of the ratio excludes "no difference"."""
        return self.ratio is not None and not self.ratio.low <= 1.0 <= self.ratio.high

    def is_slower_by(self, limit_ratio: float) -> bool:
        """Whether ``b`` is slower by more than this, and certainly slower at all."""
        return self.ratio is not None and self.is_certain and self.ratio.value - 1 > limit_ratio


def compare(a: RunData, b: RunData, role: str = "") -> Comparison:
    """``role``: "" for the role with the most steps."""
    differences = tuple(differing(a.facts, b.facts))
    names = (a.run.run, b.run.run) if a.run.run != b.run.run else (a.run.id, b.run.id)
    role = role or main_role(a.steps) or ""
    if problem := _other_size(a, b, role):
        return Comparison(*names, f"not comparable: {problem}", differences)
    ours, theirs = step_parts(a.steps, role), step_parts(b.steps, role)
    for name, steps in zip(names, (ours, theirs), strict=True):
        if len(steps) < MIN_STEPS:
            who = f"role {role} of {name}" if role else name
            enough = f"{who} has {len(steps)} steps after warm-up, {MIN_STEPS} are needed"
            return Comparison(*names, f"too few steps: {enough}", differences)
    unit: Unit = "s per token" if _has_tokens(ours) and _has_tokens(theirs) else "s"
    step = _difference("step", ours, theirs, unit)
    ratio = ratio_interval(_series("step", ours, unit), _series("step", theirs, unit))
    parts = [
        _with_share(_difference(name, ours, theirs, unit), step)
        for name in dict.fromkeys(n for s in (*ours, *theirs) for n in s.seconds)
    ]
    parts.sort(key=lambda part: -abs(part.b.value - part.a.value))
    return Comparison(
        *names, "", differences, role, len(ours), len(theirs), unit, ratio, step, tuple(parts)
    )


def _other_size(a: RunData, b: RunData, role: str) -> str:
    """Why steps of the two runs are not alike: another number of ranks; "" if they are."""
    sizes = a.run.world_size, b.run.world_size
    if None not in sizes and sizes[0] != sizes[1]:
        return f"world size {sizes[0]} and {sizes[1]}"
    numbers = [
        max((len(row.cells) for row in data.steps if row.role == role), default=0)
        for data in (a, b)
    ]
    if all(numbers) and numbers[0] != numbers[1]:
        return f"role {role} has {numbers[0]} and {numbers[1]} ranks"
    return ""


def differing(a: Iterable[Fact], b: Iterable[Fact]) -> Iterable[Difference]:
    """Facts that the runs do not share, whatever the names of their nodes."""
    ours, theirs = _by_key(a), _by_key(b)
    for kind, key in sorted(ours.keys() | theirs.keys()):
        values = ours.get((kind, key), ""), theirs.get((kind, key), "")
        if values[0] != values[1] and key not in _EXPLAINS_NOTHING:
            yield Difference(kind, key, *values)


def _by_key(facts: Iterable[Fact]) -> dict[tuple[str, str], str]:
    values: dict[tuple[str, str], set[str]] = {}
    for fact in facts:
        values.setdefault((fact.kind, fact.key), set()).add(fact.value)
    return {key: ", ".join(sorted(found)) for key, found in values.items()}


def _has_tokens(steps: Sequence[StepParts]) -> bool:
    return all(step.num_tokens for step in steps)


def _series(part: str, steps: Sequence[StepParts], unit: Unit) -> list[float]:
    """Seconds of the part, 0 in a step that does not have it, for each step or token."""
    seconds = [s.wall_seconds if part == "step" else s.seconds.get(part, 0.0) for s in steps]
    if unit == "s":
        return seconds
    return [value / (s.num_tokens or 1.0) for value, s in zip(seconds, steps, strict=True)]


def _difference(
    part: str, a: Sequence[StepParts], b: Sequence[StepParts], unit: Unit
) -> PartDifference:
    before, after = (median_interval(_series(part, steps, unit)) for steps in (a, b))
    seconds_before, seconds_after = (median(_series(part, steps, "s")) for steps in (a, b))
    return PartDifference(part, before, after, seconds_before, seconds_after, None)


def _with_share(part: PartDifference, step: PartDifference) -> PartDifference:
    total = step.b.value - step.a.value
    share = (part.b.value - part.a.value) / total if total else None
    return PartDifference(part.part, part.a, part.b, part.a_seconds, part.b_seconds, share)
