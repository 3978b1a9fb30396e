"""Selects the logged values that judges need; all other values stay on their node."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import isfinite

from dfx_agent.catalogue.native import load as native_names
from dfx_agent.catalogue.native.signal_sources import clear_meaning, input_of
from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.judge.bottleneck.causes import REPORTED_METRICS
from dfx_agent.judge.divergence.inputs import broken_place

# all ranks report the same value
_DRAWN, _FIRST = frozenset({"dfx_learning_rate"}), frozenset({"0"})


def is_judged(framework: str, scalar: ScalarRecord) -> bool:
    """Whether a verdict may depend on it; for some keys only if the value is NaN or Inf."""
    if input_of(framework, scalar.key) is not None:
        return True
    if clear_meaning(framework, scalar.key) is not None:
        return True
    if _metric_of(framework, scalar.key) in REPORTED_METRICS:
        return True
    return not isfinite(scalar.value) and broken_place(framework, scalar.key) is not None


def sent_scalars(reported: ReportedScalars) -> ReportedScalars | None:
    """Judged values, and values of rank 0 that are only drawn; None if there are none."""
    is_first = reported.process.label in _FIRST
    sent = tuple(
        scalar
        for scalar in reported.scalars
        if is_judged(reported.framework, scalar)
        or (is_first and _metric_of(reported.framework, scalar.key) in _DRAWN)
    )
    return replace(reported, scalars=sent) if sent else None


@lru_cache(maxsize=4096)
def _metric_of(framework: str, key: str) -> str | None:
    """The metric that this native key is exported as; None for an unknown key."""
    native = native_names(framework).find(key)
    return native.metric if native else None
