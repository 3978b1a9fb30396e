"""Contract 2: numbers that jobs report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moments:
    """A mergeable summary of one scalar over ranks: merge states, divide once at the end."""

    count: int
    sum: float
    min: float
    max: float

    @classmethod
    def of(cls, value: float) -> Moments:
        return cls(1, value, value, value)

    def merge(self, other: Moments) -> Moments:
        count, total = self.count + other.count, self.sum + other.sum
        return Moments(count, total, min(self.min, other.min), max(self.max, other.max))

    @property
    def mean(self) -> float:
        return self.sum / self.count


@dataclass(frozen=True, slots=True)
class ScalarRow:
    """The newest value of one native key.

    ``metric`` and ``labels`` name the catalogue metric it maps to, ``metric`` is None for a key
    that no mapping knows. ``moments`` is in the metric's unit (native unit when unmapped).
    """

    key: str
    metric: str | None
    labels: Mapping[str, str]
    step: int | None
    time_seconds: float
    moments: Moments


@dataclass(frozen=True, slots=True)
class ScalarHistory:
    """One native key over steps, merged over ranks (mean), oldest first."""

    key: str
    metric: str | None
    unit: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
