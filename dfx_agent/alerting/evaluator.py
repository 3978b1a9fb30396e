"""Which alerts of one run fire, step by step: conditions, keep, inhibition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dfx_agent.metrics.alerts import ALERTS
from dfx_agent.metrics.alerts.alert import Alert
from dfx_agent.metrics.alerts.samples import samples_of
from dfx_agent.snapshot import SignalState


@dataclass(frozen=True)
class Firing:
    """An alert that fires after a step; ``is_inhibited``: another one speaks for it.

    ``symptoms`` are the families active now, with the step where each began.
    """

    alert: Alert
    since_row: int
    since_step: int
    is_inhibited: bool
    symptoms: dict[str, int]


class Evaluator:
    """The alerts of one run; ``observe`` once for each state, in order."""

    def __init__(self, alerts: Sequence[Alert] = ALERTS) -> None:
        self._alerts = alerts
        # place in ``alerts`` -> (row, step) since which it fires, and the last row it held
        self._since: dict[int, tuple[int, int]] = {}
        self._held_row: dict[int, int] = {}

    def observe(self, state: SignalState) -> list[Firing]:
        """Everything that fires after this step, the inhibited too, in the catalogue's order."""
        samples = samples_of(state)
        for i, alert in enumerate(self._alerts):
            if alert.condition.holds(samples):
                self._since.setdefault(i, (state.row, state.step))
                self._held_row[i] = state.row
            elif i in self._since and state.row - self._held_row[i] > alert.keep_steps:
                del self._since[i]
        firing = [self._alerts[i] for i in sorted(self._since)]
        inhibited = {name for alert in firing for name in alert.inhibits}
        symptoms = onset_steps(state)
        return [
            Firing(self._alerts[i], *self._since[i], self._alerts[i].name in inhibited, symptoms)
            for i in sorted(self._since)
        ]


def onset_steps(state: SignalState) -> dict[str, int]:
    """Active family -> step at which its change began, the earlier of two directions."""
    found: dict[str, int] = {}
    for row in state.symptoms:
        if row.is_active and row.onset_step is not None:
            found[row.symptom] = min(row.onset_step, found.get(row.symptom, row.onset_step))
    return found
