"""When an alert holds, as data: evaluated here, and compiled to PromQL from the same declaration.

A condition reads the samples of ONE run. Its PromQL counterpart therefore aggregates by (job, run):

    Compare(Series(m, l=x), ">", 2)     max by (job, run) (m{l="x"}) > 2    (min for < and <=)
    Agree(Series(m), "l", 3)            sum by (job, run) (max by (job, run, l) (m)) >= 3
    Every(a, b)                         a and on (job, run) b
    Either(a, b)                        a or b
    Unless(a, b)                        a unless on (job, run) b

A series that is absent makes Compare false and adds nothing to Agree, as in PromQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dfx_agent.metrics.spec import Metric

# sample name -> (labels without run, value) of one run
Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]

Operator = Literal[">", ">=", "<", "<=", "=="]


class Condition(Protocol):
    """Something that holds or does not, for one run at one step."""

    def holds(self, samples: Samples) -> bool: ...


@dataclass(frozen=True)
class Series:
    """The series of a metric whose labels have one of the given values; any when not given."""

    metric: Metric
    where: Mapping[str, tuple[str, ...]]

    def select(self, samples: Samples) -> Iterator[tuple[Mapping[str, str], float]]:
        for labels, value in samples.get(self.metric.sample_name, ()):
            for name, values in self.where.items():
                if labels.get(name, "") not in values:
                    break
            else:
                yield labels, value


def series(metric: Metric, **where: str | tuple[str, ...]) -> Series:
    """``series(SYMPTOM_ACTIVE, symptom=("entropy", "reward"))``."""
    choices = {name: (v,) if isinstance(v, str) else v for name, v in where.items()}
    unknown = set(choices) - set(metric.labels)
    if unknown:
        raise ValueError(f"{metric.name} has no label {min(unknown)}")
    return Series(metric, choices)


@dataclass(frozen=True)
class Compare:
    """The largest matching value (the smallest for < and <=) against a bound."""

    series: Series
    operator: Operator
    bound: float

    def holds(self, samples: Samples) -> bool:
        values = [value for _, value in self.series.select(samples)]
        if not values:
            return False
        value = min(values) if self.operator.startswith("<") else max(values)
        return _compare(value, self.operator, self.bound)


@dataclass(frozen=True)
class Agree:
    """At least ``at_least`` values of label ``by`` have a series that is 1 (and not 0)."""

    series: Series
    by: str
    at_least: int

    def holds(self, samples: Samples) -> bool:
        active = {labels[self.by] for labels, value in self.series.select(samples) if value}
        return len(active) >= self.at_least


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


def _compare(value: float, operator: Operator, bound: float) -> bool:
    if operator.startswith("<"):
        return value < bound or (operator == "<=" and value == bound)
    if operator == "==":
        return value == bound
    return value > bound or (operator == ">=" and value == bound)
