"""The catalogue of alerts: one file per area, ``ALERTS`` in each."""

from dfx_agent.metrics.alerts import rollout, stability
from dfx_agent.metrics.alerts.alert import Alert

ALERTS: tuple[Alert, ...] = (*stability.ALERTS, *rollout.ALERTS)
