"""Logs of the past through the same judgement, and what it would have told."""
