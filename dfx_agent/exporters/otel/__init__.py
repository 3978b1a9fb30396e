"""Pushes metrics and steps as OpenTelemetry."""
