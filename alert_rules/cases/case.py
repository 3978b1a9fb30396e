"""What a case is: series of one run, and whether the alert fires on them."""

from __future__ import annotations

from dataclasses import dataclass

from dfx_agent.catalogue.spec import Metric

_DEFAULTS = {"role": "trainer", "rank": "0", "device": "0"}


@dataclass(frozen=True)
class Sample:
    """One series; ``labels`` without job, run and instance.

    ``value`` is what it has all the time; with ``before`` it had that until 2 minutes before the
    end. ``gone``: the series ends 10 minutes before the end of the case, and ``value`` is what it
    says last, if it has a ``before``.
    """

    metric: Metric
    labels: tuple[tuple[str, str], ...]
    value: float
    before: float | None = None
    gone: bool = False


Series = tuple[Sample, ...]


@dataclass(frozen=True)
class Cases:
    """Series on which the alert must fire, and on which it must not.

    ``carries``: which of job and run the alert has.
    """

    fires: tuple[Series, ...]
    silent: tuple[Series, ...]
    carries: tuple[str, ...] = ("job", "run")


def at(metric: Metric, value: float, **labels: str) -> Sample:
    """A constant series; ranks are rank 0 of the trainer if nothing else is said."""
    names = [name for name in metric.labels if name != "run"]
    unknown = set(labels) - set(names)
    if unknown:
        raise ValueError(f"{metric.name} has no label {min(unknown)}")
    given = {name: labels.get(name, _DEFAULTS.get(name, "")) for name in names}
    return Sample(metric, tuple(given.items()), value)


def rises(metric: Metric, value: float, **labels: str) -> Sample:
    """A counter at 0 that reaches ``value`` 2 minutes before the end."""
    made = at(metric, value, **labels)
    return Sample(metric, made.labels, value, before=0)


def gone(metric: Metric, value: float, before: float | None = None, **labels: str) -> Sample:
    """A series whose agent is lost 10 minutes before the end; it said ``value`` last."""
    made = at(metric, value, **labels)
    return Sample(metric, made.labels, value, before, gone=True)
