"""Training health as time series over steps, for each signal and symptom."""

from __future__ import annotations

from collections.abc import Sequence

from dfx_agent.snapshot import (
    SignalHistory,
    SignalRow,
    SignalSeries,
    SignalState,
    SymptomSeries,
)


def signal_history(states: Sequence[SignalState]) -> SignalHistory:
    """Time series of all signals and symptoms over the last steps; ``states``: oldest first."""
    by_name = [{row.signal: row for row in state.signals} for state in states]
    names = dict.fromkeys(name for rows in by_name for name in rows)
    active = [
        {(row.symptom, row.direction): row.is_active for row in state.symptoms} for state in states
    ]
    families = dict.fromkeys(family for rows in active for family in rows)
    return SignalHistory(
        tuple(state.step for state in states),
        tuple(state.is_latched for state in states),
        tuple(_signal_series(name, [rows.get(name) for rows in by_name]) for name in names),
        tuple(
            SymptomSeries(
                name, direction, tuple(rows.get((name, direction), False) for rows in active)
            )
            for name, direction in families
        ),
    )


def _signal_series(name: str, rows: list[SignalRow | None]) -> SignalSeries:
    return SignalSeries(
        name,
        tuple(None if row is None else row.value for row in rows),
        tuple(None if row is None else row.baseline_low for row in rows),
        tuple(None if row is None else row.baseline_high for row in rows),
        tuple(None if row is None else row.z for row in rows),
    )
