"""Numbers that the processes of a job report, over its steps: those that nodes tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dfx_agent.catalogue.native.time_series import ScalarStore, scalar_history, scalar_row
from dfx_agent.facts.scalars import ToldScalars
from dfx_agent.snapshot import ScalarHistory, ScalarRow

# nodes tell one after the other what came in seconds: their ranks are that many steps apart
_RECENT_STEPS = 32


class JobCurves:
    """``add`` what nodes tell; rows are made anew when a value has come."""

    def __init__(self) -> None:
        self._store = ScalarStore(_RECENT_STEPS)
        self._newest: dict[str, float] = {}  # key -> Unix time
        self._rows: tuple[str, tuple[ScalarRow, ...]] | None = None

    @property
    def num_stale(self) -> int:
        """Values of steps long past, which are in no curve."""
        return self._store.num_stale

    def add(self, told: ToldScalars, attempt: int) -> None:
        """``attempt``: how often the place of this process was taken before."""
        place = f"{told.process.role}/{told.process.label}"
        self._rows = None
        for scalar in told.scalars:
            self._store.add(scalar.key, place, attempt, scalar.step, scalar.value)
            if not self._store.has(scalar.key):
                continue
            seconds = told.epoch_seconds(scalar)
            self._newest[scalar.key] = max(seconds, self._newest.get(scalar.key, 0.0))

    def rows(self, framework: str) -> tuple[ScalarRow, ...]:
        """Over ranks, at the newest step of each key; ``framework``: whose names they are."""
        if self._rows is None or self._rows[0] != framework:
            self._rows = framework, tuple(self._of_keys(framework))
        return self._rows[1]

    def histories(self, framework: str, keys: Sequence[str]) -> list[ScalarHistory]:
        """Of the ``keys`` that are known, all for none."""
        known = self._store.keys()
        return [
            scalar_history(framework, self._store, key) for key in (keys or known) if key in known
        ]

    def _of_keys(self, framework: str) -> Iterable[ScalarRow]:
        for key, seconds in self._newest.items():
            latest = self._store.latest(key)
            if latest is not None:
                yield scalar_row(framework, key, latest[0], seconds, latest[1])
