"""The hub's receiver for OTLP over HTTP: facts of nodes as log records, and spans of jobs."""
