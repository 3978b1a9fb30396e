"""Sentences of the agent about the machine it runs on."""

from __future__ import annotations

from dfx_agent.base.text import Sentence

CLOCK_SET = Sentence(
    "The wall clock of {node} was set {direction} by {amount} (seen at {at}). "
    "Durations come from the monotonic clock; times of day before that are {amount} off.",
    {"node": "node-a", "direction": "back", "amount": "1.0 h", "at": "14:03:20 UTC"},
)
