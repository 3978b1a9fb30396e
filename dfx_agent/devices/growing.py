"""Counters of drivers that only go up, also where a driver is reloaded or its counter wraps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping


class Growing:
    """What was counted since the first look, by what is counted.

    A value that is smaller than the one before begins anew: what it has counted since is added.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, float] = {}
        self._before: dict[Hashable, float] = {}

    def total(self, key: Hashable, value: float) -> float:
        """Of the counter that says ``value`` now: never less than was told."""
        seen = self._seen.get(key)
        if seen is not None and value < seen:
            self._before[key] = self._before.get(key, 0.0) + seen
        self._seen[key] = value
        return self._before.get(key, 0.0) + value

    def totals(self, device: str, values: Mapping[str, float | None]) -> dict[str, float]:
        """Of several counters of one device, without those that it does not tell."""
        return {
            name: self.total((device, name), value)
            for name, value in values.items()
            if value is not None
        }
