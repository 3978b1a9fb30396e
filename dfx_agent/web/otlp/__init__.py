"""The hub's side of OTLP over HTTP: what nodes tell it as log records."""
