"""The change of a step, as a verdict predicts it and as it was measured."""

from __future__ import annotations

import pytest

from bench.pipeline_counterfactual import counterfactual

STEPS = {step: 2.0 + 0.1 * (step % 2) + (1.5 if step >= 10 else 0.0) for step in range(3, 20)}


def test_a_step_that_became_longer_is_compared_with_the_prediction():
    change = counterfactual({1: 9.0, 2: 9.0, **STEPS}, 10, [1.4, 1.5, 1.6])
    assert change is not None
    assert change.measured_seconds == pytest.approx(1.5, abs=0.02)
    assert change.ratio == pytest.approx(1.0, abs=0.02)
    assert 0 < change.uncertainty_seconds < 0.1


@pytest.mark.parametrize("amounts", [[], [1.5]])
def test_without_a_prediction_or_enough_steps_nothing_is_compared(amounts):
    assert counterfactual(STEPS if not amounts else {10: 1.0}, 10, amounts) is None
