"""The catalogue of alerts: one file per area, ``ALERTS`` in each."""

from collections.abc import Mapping

from dfx_agent.catalogue.alerts.alert import Alert, until_end
from dfx_agent.catalogue.alerts.conditions import parts_of
from dfx_agent.catalogue.alerts.declared import (
    data,
    memory,
    observation,
    pipeline,
    progress,
    rollout,
    stability,
)
from dfx_agent.catalogue.alerts.thresholds import Threshold, with_values

_AREAS = stability, rollout, memory, progress, pipeline, data, observation
# what an agent can evaluate itself
ALERTS: tuple[Alert, ...] = tuple(until_end(alert) for area in _AREAS for alert in area.ALERTS)
# and what only a server that sees all agents can
PROMETHEUS_ALERTS: tuple[Alert, ...] = (*ALERTS, *observation.PROMETHEUS_ALERTS)


def thresholds() -> dict[str, Threshold]:
    """Key -> threshold with its default, of the whole catalogue."""
    return {threshold.key: threshold for threshold in parts_of(PROMETHEUS_ALERTS, Threshold)}


def alerts_with(values: Mapping[str, float], alerts: tuple[Alert, ...]) -> tuple[Alert, ...]:
    """``alerts`` with the user's thresholds; the keys were checked before."""
    return with_values(alerts, values)
