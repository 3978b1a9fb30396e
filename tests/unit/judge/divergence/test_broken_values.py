"""NaN and Inf as single processes report them."""

import math

from kept_json import through_json

from dfx_agent.judge.divergence.broken_values import (
    BrokenValues,
    Place,
    SavedBreak,
    broken_sentence,
)
from dfx_agent.judge.divergence.verdict import broken_verdict


def test_the_first_place_is_named_with_its_ranks():
    broken = BrokenValues()
    broken.observe("grad", "torch/grad_norm", "0", 12, math.inf, 12.2)
    broken.observe("loss", "torch/loss", "1", 12, math.nan, 12.1)
    broken.observe("loss", "torch/loss", "0", 13, math.nan, 13.1)
    breaks = broken.breaks(is_scaled=False)
    assert broken_sentence(breaks) == (
        "The loss has been NaN since step 12 on rank 1. Then followed: the gradient norm (step 12)."
    )


def test_it_is_forgotten_ten_steps_after_the_last_one():
    broken = BrokenValues()
    broken.observe("loss", "loss", "0", 5, math.inf, 1.0)
    broken.set_progress(15, 1e6)
    assert (
        broken_sentence(broken.breaks(is_scaled=True))
        == "The loss has been infinite since step 5 on rank 0."
    )
    broken.set_progress(16, 1e6)
    assert not broken.breaks(is_scaled=True)


def test_what_a_gradient_scaler_skips_is_no_finding():
    broken = BrokenValues()
    broken.observe("grad", "torch/grad_norm", "0", 1, math.inf, 1.0)
    assert broken.breaks(is_scaled=False)
    assert not broken.breaks(is_scaled=True)
    broken.observe("loss", "torch/loss", "0", 2, math.nan, 2.0)
    assert [place for place, _ in broken.breaks(is_scaled=True)] == ["grad", "loss"]


def test_a_restart_before_it_forgets_it():
    broken = BrokenValues()
    broken.observe("loss", "loss", "0", 5, math.nan, 1.0)
    broken.rewind(5)
    assert not broken.breaks(is_scaled=False)


def test_the_next_agent_knows_since_when():
    values = BrokenValues()
    values.observe("grad", "norm", "1", 6, math.nan, 100.0)
    values.observe("loss", "loss", "0", 7, math.inf, 101.0)
    values.observe("grad", "norm", "0", 15, math.nan, 110.0)
    following = BrokenValues()
    following.resume(through_json(values.save(), dict[Place, SavedBreak]), 15, 110.0)
    following.observe("grad", "norm", "0", 16, math.nan, 111.0)
    assert broken_sentence(following.breaks(is_scaled=False)) == (
        "The gradient norm has been NaN since step 6 on rank 1. Then followed: the loss (step 7)."
    )
    following.set_progress(40, 1e6)
    assert following.breaks(is_scaled=False) == []


def places(broken: BrokenValues) -> list[tuple[str, int, float, set[str]]]:
    found = broken.breaks(is_scaled=False)
    return [(place, first.step, first.seconds, first.ranks) for place, first in found]


def test_the_ranks_are_those_of_its_first_step_and_the_time_is_the_earliest():
    broken = BrokenValues()
    for rank, step, seconds in (("2", 6, 6.5), ("1", 5, 5.5), ("0", 5, 5.25), ("3", 6, 4.0)):
        broken.observe("loss", "torch/loss", rank, step, math.nan, seconds)
    assert places(broken) == [("loss", 5, 5.25, {"0", "1"})]
    assert broken_sentence(broken.breaks(is_scaled=False)) == (
        "The loss has been NaN since step 5 on ranks 0, 1."
    )


def test_ten_steps_later_it_goes_on_and_eleven_and_two_minutes_later_it_is_another():
    for later, begin in ((15, 5), (16, 16)):
        broken = BrokenValues()
        for step in (5, later):
            broken.observe("loss", "loss", "0", step, math.nan, 20.0 * step)
        assert places(broken) == [("loss", begin, 20.0 * begin, {"0"})]


def test_the_loss_of_a_step_comes_first_though_reported_after_the_gradient():
    broken = BrokenValues()
    for rank in "01":  # its gradient reaches all ranks, by clipping, before the optimizer steps
        broken.observe("grad", "torch/grad_norm", rank, 25, math.nan, 25.1)
    broken.observe("loss", "torch/loss", "1", 25, math.nan, 25.9)
    breaks = broken.breaks(is_scaled=False)
    assert broken_sentence(breaks) == (
        "The loss has been NaN since step 25 on rank 1. Then followed: the gradient norm (step 25)."
    )
    verdict = broken_verdict(breaks, None, "trainer")
    assert (verdict.cause, verdict.ranks) == ("NaN or Inf, loss first", ("1",))
    assert (verdict.step, verdict.since_seconds) == (25, 25.9)


def test_a_gradient_that_breaks_a_step_before_the_loss_comes_first():
    broken = BrokenValues()
    broken.observe("loss", "torch/loss", "0", 41, math.nan, 5.1)
    broken.observe("grad", "torch/grad_norm", "0", 40, math.inf, 5.9)
    assert [place for place, *_ in places(broken)] == ["grad", "loss"]
    broken.observe("loss", "torch/loss", "1", 39, math.nan, 6.0)
    assert [place for place, *_ in places(broken)] == ["loss", "grad"]


def test_a_rewind_removes_only_that_step_and_later_ones():
    broken = BrokenValues()
    broken.observe("loss", "loss", "0", 5, math.nan, 5.0)
    broken.observe("grad", "grad", "0", 6, math.nan, 6.0)
    broken.set_progress(40, 1e6)
    assert places(broken) == []
    broken.rewind(6)
    assert places(broken) == [("loss", 5, 5.0, {"0"})]
    broken.set_progress(4, 1e6)
    assert places(broken) != [], "a rank that is behind does not bring time back"


def test_of_steps_that_take_milliseconds_it_is_known_for_two_minutes():
    broken = BrokenValues()
    broken.observe("loss", "loss", "0", 5, math.nan, 100.0)
    broken.set_progress(500, 219.0)
    assert broken.breaks(is_scaled=False)
    broken.set_progress(501, 221.0)
    assert not broken.breaks(is_scaled=False)


def test_a_rank_that_lags_behind_does_not_end_it():
    broken = BrokenValues()
    broken.observe("loss", "loss", "0", 5, math.nan, 1.0)
    broken.observe("loss", "loss", "0", 14, math.nan, 2.0)
    broken.observe("loss", "loss", "1", 6, math.nan, 3.0)
    broken.set_progress(24, 1e6)
    assert broken.breaks(is_scaled=False)


def test_the_begin_stays_while_values_are_read_in_few_steps():
    """At 0.05 s a step the guest reads a loss in each 48th step: NaN never ended between them."""
    values = BrokenValues()
    values.observe("loss", "torch/loss", "1", 241, math.nan, 100.0)
    for n in range(1, 40):
        values.observe("loss", "torch/loss", "0", 241 + 48 * n, math.nan, 100.0 + 2.4 * n)
    ((_, first),) = values.breaks(is_scaled=False)
    assert (first.step, first.ranks) == (241, {"1"})
