"""Scalars as rows of a Snapshot. They change once a step, a snapshot is asked for more often."""

from __future__ import annotations

from dfx_agent.catalogue.native.time_series import scalar_row
from dfx_agent.node.process import Process
from dfx_agent.snapshot import Moments, ScalarRow

_Rows = tuple[ScalarRow, ...]


class ScalarRows:
    """Rows of the ranks of one run, made when a value has come since they were made last."""

    def __init__(self) -> None:
        self._of_ranks: dict[tuple[str, str], tuple[tuple[str, int], _Rows]] = {}

    def of_rank(self, process: Process, framework: str) -> _Rows:
        """The newest value of each key; ``framework``: whose names its keys are."""
        place = process.filed_as.role, process.label
        version = framework, process.scalars_version
        known = self._of_ranks.get(place)
        if known is None or known[0] != version:
            known = self._of_ranks[place] = version, _rank_rows(process, framework)
        return known[1]

    def let_go(self, role: str, label: str) -> None:
        self._of_ranks.pop((role, label), None)


def _rank_rows(process: Process, framework: str) -> _Rows:
    seconds = process.follower.epoch_seconds
    return tuple(
        scalar_row(framework, s.key, s.step, seconds(s.time_ns), Moments.of(s.value))
        for s in process.scalars.values()
    )
