"""Contract 2: scalars that jobs report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moments:
    """Mergeable summary of one scalar over ranks; divide only after merging."""

    count: int
    sum: float
    min: float
    max: float

    @classmethod
    def of_value(cls, value: float) -> Moments:
        return cls(1, value, value, value)

    def merge(self, other: Moments) -> Moments:
        count, total = self.count + other.count, self.sum + other.sum
        return Moments(count, total, min(self.min, other.min), max(self.max, other.max))

    @property
    def mean(self) -> float:
        return self.sum / self.count


@dataclass(frozen=True, slots=True)
class ScalarRow:
    """The latest value of one native key."""

    key: str
    metric: str | None
    """Metric of the catalogue; None if the key has no mapping."""
    labels: Mapping[str, str]
    step: int | None
    time_seconds: float
    moments: Moments
    """In the metric's unit; in the native unit without a mapping."""


@dataclass(frozen=True, slots=True)
class ScalarHistory:
    """One native key over steps, merged over ranks (mean), oldest first."""

    key: str
    metric: str | None
    unit: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
