"""Which verdict an alert speaks of, read from its condition: both are one incident then."""

from __future__ import annotations

from collections.abc import Iterator

from dfx_agent.catalogue import signals, verdicts
from dfx_agent.catalogue.spec import Metric
from dfx_agent.rules.alert import Alert
from dfx_agent.rules.conditions import Series, parts_of

_KINDS: dict[Metric, str] = {
    verdicts.STRAGGLER_LOST_SECONDS: "straggler",
    signals.SYMPTOM_ACTIVE: "divergence",
    signals.NONFINITE_STEPS: "divergence",
}
_VERDICTS = (verdicts.VERDICT_ACTIVE, verdicts.VERDICT_STATE)


def verdict_kind(alert: Alert) -> str:
    """The kind of the verdict that the condition reads first; "" for none."""
    return next(_kinds(alert), "")


def _kinds(alert: Alert) -> Iterator[str]:
    for series in parts_of(alert.condition, Series):
        if series.metric in _VERDICTS:
            yield from series.where.get("kind", ())
        elif series.metric in _KINDS:
            yield _KINDS[series.metric]
