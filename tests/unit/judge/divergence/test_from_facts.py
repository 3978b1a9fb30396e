"""Whether a run diverges, concluded from what its ranks report, made by hand: no process."""

from __future__ import annotations

import math
import random

import pytest

from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.facts.seat import ProcessId
from dfx_agent.judge.divergence.health import RunHealth
from dfx_agent.judge.divergence.verdict import broken_verdict, divergence_verdict, unseen_verdict
from dfx_agent.snapshot import Verdict

SECOND = 10**9
ME = ProcessId("trainer", "0", 1)


def curve(num_steps: int, ill_from: int = 10**6) -> list[dict[str, float]]:
    draw = random.Random(3)
    rows = []
    for step in range(num_steps):
        far = 1.5 ** min(20, max(0, step - ill_from))
        noise = [math.exp(draw.gauss(0.0, 0.05)) for _ in range(3)]
        rows.append({
            "actor/grad_norm": 0.5 * far * noise[0],
            "actor/ppo_kl": 0.01 * far * noise[1],
            "actor/entropy": 0.6 / far * noise[2],
            "critic/score/mean": 0.7 / far,
        })  # fmt: skip
    return rows


def reported(rows: list[dict[str, float]], process: ProcessId = ME) -> RunHealth:
    """One step a second; two readings after each."""
    health = RunHealth()
    for step, values in enumerate(rows, start=1):
        received = (ScalarRecord(k, v, step, step * SECOND, step) for k, v in values.items())
        health.add(ReportedScalars(process, "verl", tuple(received), 0))
        for _ in range(2):
            health.close({process: step + 1})
    return health


def judged(health: RunHealth) -> Verdict:
    assert health.state is not None
    return divergence_verdict(health.state, "trainer", health.critical, set())


def test_a_healthy_run_is_clear():
    assert judged(reported(curve(120))).state == "clear"


def test_a_run_that_blows_up_is_found_within_20_steps():
    assert judged(reported(curve(120, ill_from=100))).state == "found"


@pytest.mark.parametrize("num_steps", [1, 5])
def test_a_run_that_has_just_begun_is_not_clear(num_steps):
    assert judged(reported(curve(num_steps))).state == "insufficient evidence"


def test_a_run_that_reports_nothing_is_not_clear():
    assert reported([{"no/such_key": 1.0}]).state is None
    assert unseen_verdict("trainer").state == "insufficient evidence"


def test_a_loss_that_is_nan_is_found_at_once_where_nothing_scales_it():
    rows = curve(30)
    rows[-1]["actor/grad_norm"] = math.nan
    health = reported(rows)
    breaks = health.broken.breaks(is_scaled=False)
    found = broken_verdict(breaks, health.state, "trainer")
    assert (found.state, found.step) == ("found", 30)


def test_two_ranks_that_report_the_same_are_one_run():
    health = RunHealth()
    other = ProcessId("trainer", "1", 1)
    for step, values in enumerate(curve(60), start=1):
        for process in (ME, other):
            received = (ScalarRecord(k, v, step, step * SECOND, step) for k, v in values.items())
            health.add(ReportedScalars(process, "verl", tuple(received), 0))
        health.close({ME: step + 1, other: step + 1})
        health.close({ME: step + 1, other: step + 1})
    assert judged(health).state == "clear"
    assert health.state == reported(curve(60)).state
