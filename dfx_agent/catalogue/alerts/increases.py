"""Growth of counters over a time window: the samples that ``Grows`` reads in the agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from dfx_agent.catalogue.alerts.conditions import Grows, Samples

_Key = tuple[str, frozenset[tuple[str, str]]]
_RESOLUTION_SECONDS = 5.0


class Increases:
    """The counters of one run that some condition watches.

    As ``increase()`` of Prometheus: what a counter had when it was first seen is no growth, and a
    fall is a restart from 0.
    """

    def __init__(self, declarations: Iterable[Any]) -> None:
        self._windows = {
            (grows.series.metric.sample_name, grows.window_seconds, grows.sample_name)
            for declaration in declarations
            for grows in _grows_in(declaration)
        }
        self._longest_seconds = max((seconds for _, seconds, _ in self._windows), default=0)
        self._latest: dict[_Key, float] = {}
        # (time, growth) of each counter, growths of one resolution merged
        self._growths: dict[_Key, deque[tuple[float, float]]] = {}

    def with_increases(self, samples: Samples, now_seconds: float) -> Samples:
        """``samples`` and what watched counters grew by; monotonic ``now_seconds``."""
        found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for name in {name for name, _, _ in self._windows}:
            for labels, value in samples.get(name, ()):
                self._add((name, frozenset(labels.items())), value, now_seconds)
        for name, window_seconds, sample_name in self._windows:
            rows = found.setdefault(sample_name, [])
            for key, growths in self._growths.items():
                since = now_seconds - window_seconds
                if key[0] == name and (total := sum(g for t, g in growths if t > since)):
                    rows.append((dict(key[1]), total))
        return {**samples, **found}

    def _add(self, key: _Key, value: float, now_seconds: float) -> None:
        before = self._latest.get(key, value)
        self._latest[key] = value
        growth = value if value < before else value - before
        growths = self._growths.setdefault(key, deque())
        while growths and growths[0][0] <= now_seconds - self._longest_seconds:
            growths.popleft()
        if growth and growths and now_seconds - growths[-1][0] < _RESOLUTION_SECONDS:
            began_seconds, earlier = growths.pop()
            growths.append((began_seconds, earlier + growth))
        elif growth:
            growths.append((now_seconds, growth))


def _grows_in(value: Any) -> Iterator[Grows]:
    if isinstance(value, Grows):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _grows_in(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _grows_in(item)
