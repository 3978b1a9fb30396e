"""Conditions as PromQL, aggregated by (job, run): see ``conditions``."""

from __future__ import annotations

from functools import singledispatch

from dfx_agent.catalogue.alerts.conditions import (
    Agree,
    Compare,
    Condition,
    Either,
    Every,
    Grows,
    Promql,
    Ratio,
    Series,
    Unless,
)

BY = "by (job, run)"
_ON = "on (job, run)"


@singledispatch
def promql(condition: Condition) -> str:
    """The expression whose result is one series for each run for which the condition holds."""
    raise TypeError(f"{type(condition).__name__} has no PromQL")


@promql.register
def _(condition: Compare) -> str:
    aggregation = "min" if condition.operator.startswith("<") else "max"
    text = _vector(condition.series)
    return f"{aggregation} {BY} ({text}) {condition.operator} {number(condition.bound)}"


@promql.register
def _(condition: Grows) -> str:
    return f"max {BY} (increase({selector(condition.series)}[{condition.window_seconds}s])) > 0"


@promql.register
def _(condition: Agree) -> str:
    largest = f"max by (job, run, {condition.by}) ({selector(condition.series)})"
    return f"count {BY} ({largest} > 0) >= {number(condition.at_least)}"


@promql.register
def _(condition: Every) -> str:
    return f" and {_ON} ".join(f"({promql(part)})" for part in condition.conditions)


@promql.register
def _(condition: Either) -> str:
    return " or ".join(f"({promql(part)})" for part in condition.conditions)


@promql.register
def _(condition: Unless) -> str:
    return f"({promql(condition.condition)}) unless {_ON} ({promql(condition.veto)})"


@promql.register
def _(condition: Promql) -> str:
    return condition.text


def selector(series: Series) -> str:
    """``name{label="value",other=~"a|b"}``; the values of the catalogue need no escaping."""
    matchers = [
        f'{name}="{values[0]}"' if len(values) == 1 else f'{name}=~"{"|".join(values)}"'
        for name, values in series.where.items()
    ]
    return series.metric.sample_name + (f"{{{','.join(matchers)}}}" if matchers else "")


def number(value: float) -> str:
    """As short as it can be written exactly."""
    return f"{float(value):.15g}"


def _vector(value: Series | Ratio) -> str:
    if isinstance(value, Ratio):
        ignoring = f" ignoring ({', '.join(value.ignored)})" if value.ignored else ""
        return f"{selector(value.numerator)} /{ignoring} {selector(value.denominator)}"
    return selector(value)
