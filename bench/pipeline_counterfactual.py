"""Whether a step becomes longer by what the verdict says that the named part costs.

The fault of a run begins at a known step, so the same run has steps with and without the slow
part. The verdict's cost is the prediction; the change of the step is the measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

_WARM_UP_STEPS = 2
_SETTLED_STEPS = 2
_LEAST_STEPS = 4


@dataclass(frozen=True)
class Counterfactual:
    """Seconds by which a step is longer: as predicted, as measured, and the 95 % half-width."""

    predicted_seconds: float
    measured_seconds: float
    uncertainty_seconds: float

    @property
    def ratio(self) -> float:
        """Predicted / measured; 1 is exact."""
        return self.predicted_seconds / self.measured_seconds if self.measured_seconds else 0.0


def counterfactual(
    step_seconds: Mapping[int, float], first_step: int, amounts: Iterable[float]
) -> Counterfactual | None:
    """``amounts``: seconds of a step that the verdict named. None without enough steps."""
    known = list(amounts)
    before = [s for step, s in step_seconds.items() if _WARM_UP_STEPS < step < first_step]
    after = [s for step, s in step_seconds.items() if step >= first_step + _SETTLED_STEPS]
    if not known or min(len(before), len(after)) < _LEAST_STEPS:
        return None
    change = fmean(after) - fmean(before)
    error = 1.96 * (_variance_of_mean(before) + _variance_of_mean(after)) ** 0.5
    return Counterfactual(median(known), change, error)


def _variance_of_mean(values: list[float]) -> float:
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
