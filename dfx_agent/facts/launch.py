"""A launcher that waits for the other nodes of its job: no rank of it has begun."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """torchrun of ``run``, which needs ``num_nodes``, and meets them at ``meets_at``.

    ``node_rank``: of this node, -1 where nobody told it. ``begin_ns``: when it began, on the
    host's monotonic clock.
    """

    run: str
    num_nodes: int
    node_rank: int = -1
    meets_at: str = ""
    begin_ns: int = 0
