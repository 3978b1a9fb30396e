"""Whether the page and the warning on training health hold, judged anew when something changed.

Symptoms and collapses stay the same over most steps of a run.
"""

from __future__ import annotations

from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import UNSTABLE
from dfx_agent.catalogue.alerts.samples import symptom_samples
from dfx_agent.snapshot import CollapseRow, SymptomRow


class Vote:
    """``is_critical``: the page holds; ``is_unstable``: the warning does."""

    def __init__(self, critical: Condition) -> None:
        self.is_critical = self.is_unstable = False
        self.critical = critical
        self._newest: tuple[object, ...] | None = None

    def observe(
        self,
        symptoms: tuple[SymptomRow, ...],
        collapses: tuple[CollapseRow, ...],
        *,
        improving: bool | None,
    ) -> None:
        told = symptoms, collapses, improving
        if told == self._newest:
            return
        self._newest = told
        samples = symptom_samples(symptoms, improving=improving, collapses=collapses)
        self.is_critical = self.critical.holds(samples)
        self.is_unstable = UNSTABLE.condition.holds(samples)
