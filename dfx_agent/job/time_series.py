"""Numbers that the processes of a job report, over its steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from dfx_agent.catalogue.native.time_series import ScalarStore, scalar_history, scalar_row
from dfx_agent.facts.scalars import ReportedScalars
from dfx_agent.facts.seat import ProcessId
from dfx_agent.snapshot import ScalarHistory, ScalarRow


class JobTimeSeries:
    """Values over steps. Call ``add`` with reports; rows are rebuilt after a new value."""

    def __init__(self, num_recent_steps: int) -> None:
        """``num_recent_steps``: how many steps two ranks may be apart when values arrive."""
        self._store = ScalarStore(num_recent_steps)
        self._latest: dict[str, float] = {}  # key -> Unix time
        self._rows: tuple[str, tuple[ScalarRow, ...]] | None = None

    @property
    def num_stale(self) -> int:
        """Number of values that arrived too late to be part of a time series."""
        return self._store.num_stale

    def add(self, reported: Iterable[tuple[ReportedScalars, int]]) -> None:
        """Add values, sorted by event time: one rank may report many steps before another does.

        Each item is (values, attempt of their process).
        """
        values = [
            (scalar.time_ns + scalars.epoch_offset_ns, scalar, _place(scalars.process), attempt)
            for scalars, attempt in reported
            for scalar in scalars.scalars
        ]
        self._rows = None if values else self._rows
        self._store.now_seconds = time.monotonic()
        for unix_ns, scalar, place, attempt in sorted(values, key=lambda value: value[0]):
            self._store.add(scalar.key, place, attempt, scalar.step, scalar.value)
            if self._store.has(scalar.key):
                self._latest[scalar.key] = max(unix_ns / 1e9, self._latest.get(scalar.key, 0.0))

    def remove_process(self, process: ProcessId) -> None:
        """Drop a process that ended long ago; its values stay in the means."""
        self._store.remove_rank(_place(process))

    def rows(self, framework: str) -> tuple[ScalarRow, ...]:
        """One row per key, over ranks, at its latest step. ``framework``: defines the key names."""
        if self._rows is None or self._rows[0] != framework:
            self._rows = framework, tuple(self._of_keys(framework))
        return self._rows[1]

    def keys(self) -> list[str]:
        """All native keys that have a history."""
        return self._store.keys()

    def history(self, framework: str, key: str) -> ScalarHistory:
        """One native key over steps, in the unit of its metric. KeyError for an unknown key."""
        return scalar_history(framework, self._store, key)

    def histories(self, framework: str, keys: Sequence[str]) -> list[ScalarHistory]:
        """Histories of the existing ``keys``; of all keys if ``keys`` is empty."""
        stored_keys = self._store.keys()
        return [self.history(framework, key) for key in (keys or stored_keys) if key in stored_keys]

    @property
    def first_step(self) -> int:
        """The earliest step that any history begins with; 0 without one."""
        return self._store.first_step

    def after(
        self, step: int | None, since_seconds: float | None = None
    ) -> Mapping[int, dict[str, float]]:
        """Step -> native key -> mean over ranks, of the steps after ``step``; of all for None.

        ``since_seconds``: and of earlier steps with a value that arrived since then, monotonic.
        """
        return self._store.after(step, since_seconds)

    def _of_keys(self, framework: str) -> Iterable[ScalarRow]:
        for key, seconds in self._latest.items():
            latest = self._store.latest(key)
            if latest is not None:
                yield scalar_row(framework, key, latest[0], seconds, latest[1])


def _place(process: ProcessId) -> str:
    return f"{process.role}/{process.label}"
