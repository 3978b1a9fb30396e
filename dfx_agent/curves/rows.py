"""Reported numbers by the names and in the units of the catalogue."""

from __future__ import annotations

from dfx_agent.catalogue.native import load
from dfx_agent.catalogue.spec import by_name
from dfx_agent.curves.store import ScalarStore
from dfx_agent.snapshot import Moments, ScalarHistory, ScalarRow

_METRICS = by_name()


def scalar_row(
    framework: str, key: str, step: int | None, seconds: float, moments: Moments
) -> ScalarRow:
    """``framework``: whose name ``key`` is."""
    native = load(framework).find(key)
    if native is None:
        return ScalarRow(key, None, {}, step, seconds, moments)
    scale = native.scale
    if scale != 1.0:
        ends = moments.min * scale, moments.max * scale
        moments = Moments(moments.count, moments.sum * scale, min(ends), max(ends))
    return ScalarRow(key, native.metric, native.labels, step, seconds, moments)


def scalar_history(framework: str, store: ScalarStore, key: str) -> ScalarHistory:
    """One native key over steps, in the unit of its metric. KeyError for an unknown key."""
    steps, values = store.history(key)
    native = load(framework).find(key)
    if native is None:
        return ScalarHistory(key, None, "", steps, values)
    if native.scale != 1.0:
        values = tuple(value * native.scale for value in values)
    return ScalarHistory(key, native.metric, _METRICS[native.metric].unit, steps, values)
