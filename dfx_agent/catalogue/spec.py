"""What a metric is: declared once, read by exporters, page, boards, rules and docs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Literal

from dfx_agent.snapshot import Histogram

Kind = Literal["gauge", "counter", "info", "histogram"]
MetricSource = Literal["native", "shim", "device", "derived", "agent", "engine"]

# the row that ``value`` receives, and with it the first labels: an AgentRow (none), a RunRow (run,
# node), a RankRow (run, role, rank) of any process, of one that sends records, or of one whose
# guest measures times, a DeviceMemory (run, role, rank, device), or an EngineFacts (run, node,
# replica, dp_rank)
Subject = Literal["agent", "run", "rank", "sender", "guest", "device", "engine"]
# None has no series; a mapping is by the metric's further label, a tuple if there are several;
# histograms only of that kind
Values = float | Histogram | None | Mapping[Any, float | Histogram]

_UCUM = {"seconds": "s", "bytes": "By", "ratio": "1"}

# labels every series of a training process carries
PER_RANK = ("run", "role", "rank")
# and every series that each node's agent computes from its part of the run
PER_NODE = ("run", "node")


@dataclass(frozen=True)
class Metric:
    """One metric family.

    ``name`` is the Prometheus name without ``_total``; ``unit`` is a base unit (seconds, bytes,
    ratio, tokens, nats) or "" for a plain number. ``help`` is one sentence: meaning, and how it is
    computed where that is not obvious. ``value`` takes a row of the Snapshot, the one that
    ``subject`` names; without it an exporter writes the metric by itself.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    source: MetricSource
    subject: Subject | None = field(default=None, kw_only=True)
    value: Callable[[Any], Values] | None = field(default=None, kw_only=True, compare=False)
    upstream: str = field(default="", kw_only=True)
    """What would send it and is in no release of a framework yet; "" if a release sends it."""

    @property
    def sample_name(self) -> str:
        """The name a query uses."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def otel_name(self) -> str:
        """The name with dots; a receiver that turns it into Prometheus' form gets ours back."""
        name = f"{self.name}_info" if self.kind == "info" else self.name
        return name.replace("_", ".")

    @property
    def otel_unit(self) -> str:
        """UCUM where the name ends with the unit, else it is a note: receivers append the first."""
        is_named = self.name.endswith(f"_{self.unit}")
        return _UCUM.get(self.unit, "") if is_named else ""


def native(
    name: str,
    unit: str,
    labels: tuple[str, ...],
    meaning: str,
    *,
    kind: Kind = "gauge",
    upstream: str = "",
) -> Metric:
    """A metric that frameworks log and nobody else measures; counters are running totals."""
    labels = (*PER_RANK, *labels)
    return Metric(name, kind, unit, labels, meaning, "native", upstream=upstream)


def catalogue() -> Iterator[tuple[str, tuple[Metric, ...]]]:
    """(class, its metrics) for every module of this package, sorted."""
    package = import_module(__package__ or "dfx_agent.catalogue")
    for module in sorted(iter_modules(package.__path__), key=lambda m: m.name):
        if not module.ispkg and module.name != "spec":
            yield module.name, metrics_of(import_module(f"{package.__name__}.{module.name}"))


def metrics_of(module: ModuleType) -> tuple[Metric, ...]:
    """Every metric that the module assigns to a name, alone or in a tuple, in its order."""
    values = (v if isinstance(v, tuple) else (v,) for v in vars(module).values())
    return tuple(item for items in values for item in items if isinstance(item, Metric))


def by_name() -> dict[str, Metric]:
    """Every metric; ValueError naming the metric when one is declared twice."""
    found: dict[str, Metric] = {}
    for _, metrics in catalogue():
        for metric in metrics:
            if metric.name in found:
                raise ValueError(f"metric {metric.name} is declared twice")
            found[metric.name] = metric
    return found


Valued = tuple[Metric, Callable[[Any], Values]]


@cache
def valued(subject: Subject) -> tuple[Valued, ...]:
    """(metric, its value) of all that take such a row, in the order of the catalogue."""
    metrics = (metric for _, of_class in catalogue() for metric in of_class)
    return tuple((m, m.value) for m in metrics if m.subject == subject and m.value is not None)
