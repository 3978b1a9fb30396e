"""A straggler whose device is held down below the others' has that as its cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.simulated_steps import Job, same_tokens, slower
from dfx_agent.facts.steps import DeviceState, RoleSteps
from dfx_agent.judge.straggler.judge import StragglerJudge

WELL = DeviceState(("nvidia:0",), 1.755e9, 0.0)
HELD = DeviceState(("nvidia:2",), 1.2e9, 0.93, ("power cap",))


def verdict(held: DeviceState, job: Job | None = None):
    known = job or Job(jitter=0.01, slow=slower(2, 1.2), tokens=same_tokens, seed=3)
    states = {str(rank): WELL for rank in range(4)} | {"2": held}
    facts = RoleSteps("t", tuple(known.steps(12)), 1.0, 4, 4, devices=states)
    found = StragglerJudge().verdict(facts)
    assert found is not None
    return found


def test_the_cause_is_the_device_with_its_reason_and_its_clock():
    found = verdict(HELD)
    assert (found.state, found.ranks, found.cause) == ("found", ("2",), "device throttled")
    assert found.summary.endswith(" The clocks of rank 2 are held down (power cap).")
    assert found.evidence[0] == (
        "GPU 2 ran at 1200 MHz, devices of the others at 1755 MHz; its clocks were held down in "
        "93 % of the last minute: power cap"
    ).replace("93 %", f"{0.93:.0%}")


def test_the_evidence_says_what_to_do_about_each_reason_once():
    both = replace(HELD, reasons=("software thermal", "hardware thermal", "sync boost"))
    for state, word in ((HELD, "power limit of the others"), (both, "fans")):
        remedies = [line for line in verdict(state).evidence if line.startswith("what to do")]
        assert len(remedies) == 1
        assert word in remedies[0]


@pytest.mark.parametrize(
    "state",
    [
        DeviceState(("nvidia:2",), 1.75e9, 0.93, ("power cap",)),
        DeviceState(("nvidia:2",), 1.2e9, 0.1, ("power cap",)),
        DeviceState(("nvidia:2",), None, None),
    ],
    ids=["as fast as the others", "held down now and then", "tells no clock"],
)
def test_a_device_that_does_not_explain_it_is_not_blamed(state):
    assert verdict(state).cause == "slower at equal tokens"


def test_a_device_that_is_held_down_in_a_job_without_a_straggler_is_no_verdict():
    assert verdict(HELD, Job(tokens=same_tokens, seed=3)).state != "found"


def test_what_the_device_did_is_told_as_of_now_and_not_as_of_the_step():
    job = Job(jitter=0.01, slow=slower(2, 1.2), tokens=same_tokens, seed=3)
    steps, judge = tuple(job.steps(12)), StragglerJudge()
    before = judge.verdict(RoleSteps("t", steps, 1.0, 4, 4))
    states = {str(rank): WELL for rank in range(4)} | {"2": HELD}
    after = judge.verdict(RoleSteps("t", steps, 1.0, 4, 4, devices=states))
    assert (before.cause, after.cause) == ("slower at equal tokens", "device throttled")
