"""Grafana boards as code; `make generate` writes generated/."""
