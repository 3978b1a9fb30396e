"""A log tells when it is read, not when its steps were: live judges it as a backtest does."""

from __future__ import annotations

import math
import random

from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.facts.seat import LOG_ROLE, ProcessId
from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.judge.divergence.health import RunHealth

KEYS = {
    "actor/ppo_kl": "policy_kl",
    "actor/grad_norm": "grad_norm",
    "actor/entropy": "entropy",
    "critic/score/mean": "reward",
}


def rows(num_steps: int, ill: range) -> list[dict[str, float]]:
    draw = random.Random(5)
    found = []
    for step in range(num_steps):
        far = 10.0 if step in ill else 1.0
        around = [math.exp(draw.gauss(0.0, 0.1)) for _ in range(3)]
        values = [0.01 * far * around[0], 0.5 * far * around[1], 0.6 * far * around[2], 0.7 / far]
        found.append(dict(zip(KEYS, values, strict=True)))
    return found


def told_at_once(log: list[dict[str, float]], role: str = LOG_ROLE) -> RunHealth:
    health, reporter = RunHealth(), ProcessId(role, "0", 1)
    for step, values in enumerate(log):
        records = (ScalarRecord(key, value, step, 1, None) for key, value in values.items())
        health.add(ReportedScalars(reporter, "verl", tuple(records), 1000 * 10**9))
        health.close({reporter: None})
    return health


def test_a_page_of_a_log_that_is_read_at_once_ends_where_a_backtest_ends_it():
    log = rows(200, range(100, 112))
    bank = SignalBank()
    wanted = {
        step: bank.observe(step, {KEYS[key]: value for key, value in values.items()}).is_latched
        for step, values in enumerate(log)
    }
    assert any(wanted.values())
    assert not wanted[190], "it is over long before the end"
    states = {state.step: state.is_latched for state in told_at_once(log).states}
    assert len(states) > 190
    assert states == {step: wanted[step] for step in states}


def test_a_page_of_a_live_job_stays_until_it_was_sent():
    health = told_at_once(rows(200, range(100, 112)), role="trainer")
    assert health.state is not None
    assert health.state.is_latched


def test_a_nan_far_back_in_a_log_is_no_finding_of_now():
    log = rows(100, range(0))
    log[40]["actor/grad_norm"] = math.nan
    health = told_at_once(log)
    assert health.broken.breaks(is_scaled=False) == []
    log[98]["actor/grad_norm"] = math.nan
    ((place, first),) = told_at_once(log).broken.breaks(is_scaled=False)
    assert (place, first.step) == ("grad", 98)
