"""The machinery behind the alerts: conditions, thresholds, PromQL, inhibition, runbook."""
