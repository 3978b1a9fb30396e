"""Counts of optimizer updates that were applied or skipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfx_agent.facts.scalars import UpdateCounts
from dfx_agent.node.process import Process

_APPLIED, _SKIPPED = "optimizer_steps", "skipped_updates"


def update_counts(processes: Iterable[Process]) -> Iterator[UpdateCounts]:
    """Counts of each live process that has an optimizer."""
    for process in processes:
        counters = process.counters
        if process.is_living and (_APPLIED in counters or _SKIPPED in counters):
            seconds = process.follower.epoch_seconds(process.last_event_ns or 0)
            applied, skipped = counters.get(_APPLIED, 0.0), counters.get(_SKIPPED, 0.0)
            yield UpdateCounts(process.id, process.step, seconds, applied, skipped)
