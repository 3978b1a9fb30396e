"""Scalars that jobs report, by step."""
