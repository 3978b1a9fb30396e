"""Which alerts a log can make fire, and when they would have come."""

from __future__ import annotations

import math

import pytest
from training_curves import healthy, trained

from dfx_agent.backtest.episodes import STEP_CLOCKED, episodes


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_a_loss_that_is_not_a_number_is_a_page_to_the_end(where):
    bank, rng = trained(60)
    broken = [bank.observe(step, {**healthy(rng), where: math.nan}) for step in range(60, 90)]
    found = {(e.alert, e.severity): (e.row, e.last_row) for e in episodes(broken)}
    assert found["DfxNonFinite", "critical"] == (60, 89)


def test_an_alert_that_also_reads_what_no_log_has_is_among_them():
    named = {(alert.name, alert.severity) for alert in STEP_CLOCKED}
    assert {("DfxNonFinite", "critical"), ("DfxTrainingDivergence", "critical")} <= named
    assert not named & {("DfxStepStalled", "critical"), ("DfxHostMemoryLeak", "warning")}
