"""When an alert holds, as data: evaluated here, and compiled to PromQL from the same declaration.

A condition reads the samples of ONE run. Its PromQL counterpart therefore aggregates by (job, run):

    Compare(Series(m, l=x), ">", 2)     max by (job, run) (m{l="x"}) > 2    (min for < and <=)
    Agree(Series(m), "l", 3)            count by (job, run) (max by (job, run, l) (m) > 0) >= 3
    Every(a, b)                         a and on (job, run) b
    Either(a, b)                        a or b
    Unless(a, b)                        a unless on (job, run) b
    Compare(Ratio(a, b), ">", 2)        max by (job, run) (a / b) > 2 (what only a has is ignored)
    Grows(Series(m), 900)               max by (job, run) (increase(m[900s])) > 0
    Promql(text)                        text; only a server that sees all agents can tell

A series that is absent makes Compare false and adds nothing to Agree, as in PromQL. What Grows
reads is made by ``Increases``: a condition remembers nothing.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

from dfx_agent.catalogue.spec import Metric

Rows = Sequence[tuple[Mapping[str, str], float]]
# sample name -> (labels without run, value) of one run
Samples = Mapping[str, Rows]

_Part = TypeVar("_Part")

Operator = Literal[">", ">=", "<", "<=", "=="]
_BELOW = frozenset({"<", "<="})
_COMPARE: Mapping[Operator, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq,
}  # fmt: skip


def parts_of(whole: Any, *kinds: type[_Part]) -> Iterator[_Part]:
    """The parts of these kinds of an alert or a condition, in order; none inside another one."""
    if isinstance(whole, kinds):
        yield whole
    elif is_dataclass(whole):
        for field in fields(whole):
            yield from parts_of(getattr(whole, field.name), *kinds)
    elif isinstance(whole, tuple):
        for item in whole:
            yield from parts_of(item, *kinds)


class Condition(Protocol):
    """Something that holds or does not, for one run at one step."""

    def holds(self, samples: Samples) -> bool: ...


@dataclass(frozen=True)
class Series:
    """The series of a metric whose labels have one of the given values; any when not given."""

    metric: Metric
    where: Mapping[str, tuple[str, ...]]

    @cached_property
    def sample_name(self) -> str:
        return self.metric.sample_name

    def select(self, samples: Samples) -> Rows:
        rows = samples.get(self.sample_name, ())
        for name, values in self.where.items():
            rows = [row for row in rows if row[0].get(name, "") in values]
        return rows


def series(metric: Metric, **where: str | tuple[str, ...]) -> Series:
    """``series(SYMPTOM_ACTIVE, symptom=("entropy", "reward"))``."""
    choices = {name: (v,) if isinstance(v, str) else v for name, v in where.items()}
    unknown = set(choices) - set(metric.labels)
    if unknown:
        raise ValueError(f"{metric.name} has no label {min(unknown)}")
    return Series(metric, choices)


@dataclass(frozen=True)
class Ratio:
    """One series divided by another one with the same labels, of those that both have."""

    numerator: Series
    denominator: Series

    @property
    def ignored(self) -> tuple[str, ...]:
        """Labels that the denominator does not have."""
        own, other = self.numerator.metric.labels, self.denominator.metric.labels
        return tuple(name for name in own if name not in other)

    def select(self, samples: Samples) -> Iterator[tuple[Mapping[str, str], float]]:
        divisors = {frozenset(labels.items()): v for labels, v in self.denominator.select(samples)}
        for labels, value in self.numerator.select(samples):
            common = {name: text for name, text in labels.items() if name not in self.ignored}
            divisor = divisors.get(frozenset(common.items()))
            if divisor:
                yield labels, value / divisor


@dataclass(frozen=True)
class Compare:
    """The largest matching value (the smallest for < and <=) against a bound."""

    series: Series | Ratio
    operator: Operator
    bound: float

    def holds(self, samples: Samples) -> bool:
        values = [row[1] for row in self.series.select(samples)]
        if not values:
            return False
        value = min(values) if self.operator in _BELOW else max(values)
        return _COMPARE[self.operator](value, self.bound)


@dataclass(frozen=True)
class Agree:
    """At least ``at_least`` values of label ``by`` have a series that is 1 (and not 0)."""

    series: Series
    by: str
    at_least: float

    def holds(self, samples: Samples) -> bool:
        active = {labels[self.by] for labels, value in self.series.select(samples) if value}
        return len(active) >= self.at_least


@dataclass(frozen=True)
class Grows:
    """A matching counter grew within the last ``window_seconds``."""

    series: Series
    window_seconds: int

    @property
    def sample_name(self) -> str:
        """Where its samples lie: the growth of each counter over the window."""
        return f"increase({self.series.metric.sample_name}[{self.window_seconds}s])"

    def holds(self, samples: Samples) -> bool:
        grown = {self.series.metric.sample_name: samples.get(self.sample_name, ())}
        return any(value > 0 for _, value in self.series.select(grown))


@dataclass(frozen=True)
class Promql:
    """What no agent can say about itself: that it is gone. Never holds in an agent.

    ``metrics`` are those of ours that the text reads.
    """

    text: str
    metrics: tuple[Metric, ...] = ()

    def holds(self, samples: Samples) -> bool:  # noqa: ARG002 (as every condition)
        return False


@dataclass(frozen=True)
class Every:
    """All hold."""

    conditions: tuple[Condition, ...]

    def holds(self, samples: Samples) -> bool:
        return all(condition.holds(samples) for condition in self.conditions)


@dataclass(frozen=True)
class Either:
    """At least one holds."""

    conditions: tuple[Condition, ...]

    def holds(self, samples: Samples) -> bool:
        return any(condition.holds(samples) for condition in self.conditions)


@dataclass(frozen=True)
class Unless:
    """The condition holds and the veto does not."""

    condition: Condition
    veto: Condition

    def holds(self, samples: Samples) -> bool:
        return self.condition.holds(samples) and not self.veto.holds(samples)


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
            for grows in parts_of(declaration, Grows)
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
