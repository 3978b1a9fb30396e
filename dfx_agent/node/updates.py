"""Updates that optimizers made or left out, of the processes that have one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfx_agent.facts.scalars import UpdateCounts
from dfx_agent.node.process import Process

_MADE, _LEFT_OUT = "optimizer_steps", "skipped_updates"


def update_counts(processes: Iterable[Process]) -> Iterator[UpdateCounts]:
    """Of those that live."""
    for process in processes:
        counters = process.counters
        if process.is_living and (_MADE in counters or _LEFT_OUT in counters):
            seconds = process.follower.epoch_seconds(process.last_event_ns or 0)
            made, left_out = counters.get(_MADE, 0.0), counters.get(_LEFT_OUT, 0.0)
            yield UpdateCounts(process.id, process.step, seconds, made, left_out)
