"""Logs of finished runs in, rows of native values out."""
