"""The aborted share over several steps, and how much it has risen."""

import pytest

from dfx_agent.catalogue.native.signal_sources import ABORTED
from dfx_agent.judge.divergence.aborted_share import AbortedShare


def shares(*values: float) -> AbortedShare:
    made = AbortedShare()
    for value in values:
        made.observe({ABORTED: value})
    return made


def test_the_rise_is_against_the_first_steps_and_not_the_level():
    assert shares(*[0.2] * 20).rise == 0.0
    assert shares(*[0.02] * 8, *[0.1] * 5).rise == pytest.approx(0.08)
    assert shares(*[0.0] * 7).rise is None


def test_one_failed_sample_of_256_is_in_the_share_and_no_rise():
    of_run = shares(*[0.0] * 8, 1 / 256)
    assert of_run.recent_median == 0.0
    assert shares(*[1 / 256] * 8).recent_median == 1 / 256


@pytest.mark.parametrize("num_steps", [3, 8, 30])
def test_another_agent_continues_with_both(num_steps):
    before = shares(*[step / 100 for step in range(num_steps)])
    after = AbortedShare()
    after.resume(before.save())
    for made in (before, after):
        for _ in range(8):
            made.observe({ABORTED: 0.5})
    assert (after.recent_median, after.rise) == (before.recent_median, before.rise)
