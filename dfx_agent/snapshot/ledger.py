"""Contract 2: batches as they crossed the boundaries of a step: a part of ``snapshot``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Batches of one rank at one boundary: the newest step, and totals since it was first seen.

    ``schema`` and ``shapes`` are checksums (hex). Totals: ``num_crossings``; samples with NaN or
    Inf and with a length that breaks the token rule, one for each column; columns not read;
    ``num_left_out`` of the crossings were not looked at, as steps were shorter than 0.25 s.
    """

    boundary: str
    step: int | None
    num_samples: int
    mask_ratio: float | None
    smallest_group: int | None
    largest_group: int | None
    schema: str
    shapes: str
    num_crossings: int
    num_nonfinite: int
    num_misaligned: int
    num_unread: int
    num_left_out: int
    num_sampled: int | None


@dataclass(frozen=True, slots=True)
class LedgerMismatches:
    """How often something did not fit at a boundary; ``kind`` as in the "data" verdict's cause."""

    boundary: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Batches of a run compared between boundaries; skipped steps could not be judged."""

    num_judged_steps: int
    num_skipped_steps: int
    num_incomplete_crossings: int
    mismatches: tuple[LedgerMismatches, ...]
