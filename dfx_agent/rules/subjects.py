"""Which verdict an alert speaks of, read from its condition: both are one incident then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from dfx_agent.catalogue import signals, verdicts
from dfx_agent.catalogue.spec import Metric
from dfx_agent.rules.alert import Alert
from dfx_agent.rules.conditions import Series

_KINDS: dict[Metric, str] = {
    verdicts.STRAGGLER_LOST_SECONDS: "straggler",
    signals.SYMPTOM_ACTIVE: "divergence",
    signals.NONFINITE_STEPS: "divergence",
}
_VERDICTS = (verdicts.VERDICT_ACTIVE, verdicts.VERDICT_STATE)


def verdict_kind(alert: Alert) -> str:
    """The kind of the verdict that the condition reads first; "" for none."""
    return next(_kinds(alert.condition), "")


def _kinds(part: Any) -> Iterator[str]:
    if isinstance(part, Series):
        if part.metric in _VERDICTS:
            yield from part.where.get("kind", ())
        elif part.metric in _KINDS:
            yield _KINDS[part.metric]
    elif is_dataclass(part):
        for field in fields(part):
            yield from _kinds(getattr(part, field.name))
    elif isinstance(part, tuple):
        for item in part:
            yield from _kinds(item)
