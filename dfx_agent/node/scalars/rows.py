"""Builds Snapshot rows from scalars.

Scalars change once a step but Snapshots are built more often, so the rows are cached.
"""

from __future__ import annotations

from dfx_agent.catalogue.native.time_series import scalar_row
from dfx_agent.node.process import Process
from dfx_agent.snapshot import Moments, ScalarRow

_Rows = tuple[ScalarRow, ...]


class ScalarRows:
    """Rows of the ranks of one run, rebuilt when a new value has arrived."""

    def __init__(self) -> None:
        self._by_rank: dict[tuple[str, str], tuple[tuple[str, int], _Rows]] = {}

    def rank_rows(self, process: Process, framework: str) -> _Rows:
        """The latest value of each key. ``framework``: the framework that defines the keys."""
        rank_key = process.registered_as.role, process.label
        version = framework, process.scalars_version
        cached = self._by_rank.get(rank_key)
        if cached is None or cached[0] != version:
            cached = self._by_rank[rank_key] = version, _rank_rows(process, framework)
        return cached[1]

    def remove_rank(self, role: str, label: str) -> None:
        self._by_rank.pop((role, label), None)


def _rank_rows(process: Process, framework: str) -> _Rows:
    seconds = process.follower.epoch_seconds
    return tuple(
        scalar_row(
            framework,
            scalar.key,
            scalar.step,
            seconds(scalar.time_ns),
            Moments.of_value(scalar.value),
        )
        for scalar in process.scalars.values()
    )
