"""Metrics and steps pushed as OpenTelemetry."""
