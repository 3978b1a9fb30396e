"""Evaluates the two conditions on training health: the alert and the warning.

Most steps change neither symptoms nor collapses; then the last result is used.
"""

from __future__ import annotations

from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import UNSTABLE
from dfx_agent.catalogue.alerts.samples import symptom_samples
from dfx_agent.snapshot import CollapseRow, SymptomRow


class Vote:
    """The last result: whether the alert (critical) and the warning (unstable) hold."""

    def __init__(self, critical: Condition) -> None:
        self.is_critical = self.is_unstable = False
        self.critical = critical
        self._last_inputs: tuple[object, ...] | None = None

    def observe(
        self,
        symptoms: tuple[SymptomRow, ...],
        collapses: tuple[CollapseRow, ...],
        *,
        improving: bool | None,
    ) -> None:
        """Evaluate both conditions for the rows of a step."""
        inputs = symptoms, collapses, improving
        if inputs == self._last_inputs:
            return
        self._last_inputs = inputs
        samples = symptom_samples(symptoms, improving=improving, collapses=collapses)
        self.is_critical = self.critical.holds(samples)
        self.is_unstable = UNSTABLE.condition.holds(samples)
