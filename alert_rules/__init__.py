"""Prometheus rules from the catalogue of alerts, with promtool tests."""
