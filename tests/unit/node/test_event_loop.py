"""Lags of an event loop: moments without an answer count, and each holder for its own time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.node.event_loop import LoopAccount, lag_stats
from dfx_agent.node.segments.records import LoopHeld, LoopLag, wide_record
from dfx_agent.wire.records import FAILED, LOOP_HELD, LOOP_LAG

S = 10**9


def test_a_loop_that_answers_at_once_is_late_by_nothing():
    stats = lag_stats([0.001] * 600)
    assert stats.num_samples == 600
    assert stats.p99_seconds == stats.max_seconds == 0.001


def test_what_could_not_be_asked_meanwhile_counts():
    """Of a minute in which one answer took 6 s a tenth went without any."""
    stats = lag_stats([0.0] * 520 + [6.0])
    assert stats.p50_seconds == 0.0
    assert 0.0 < stats.p90_seconds < 1.0
    assert stats.p99_seconds == pytest.approx(5.4, abs=0.1)
    assert stats.max_seconds == 6.0


@given(st.lists(st.floats(0, 20), min_size=1, max_size=50))
def test_quantiles_are_in_order_and_of_what_came(lags: list[float]):
    stats = lag_stats(lags)
    ordered = [stats.p50_seconds, stats.p90_seconds, stats.p99_seconds, stats.max_seconds]
    assert ordered == sorted(ordered)
    assert stats.max_seconds == max(lags)
    assert stats.num_samples == len(lags)


def test_only_the_last_minute_is_reported():
    account = LoopAccount()
    assert account.row(100 * S) is None
    account.add_lag(LoopLag(10 * S, 5.0, 0))
    account.add_held(LoopHeld("old", 5 * S, 10 * S, 5.0))
    for second in range(60, 100):
        account.add_lag(LoopLag(second * S, 0.0, 1))
    account.add_lag(LoopLag(100 * S, 2.0, 1))
    for seconds in (1.5, 0.5):
        account.add_held(LoopHeld("new", 98 * S, 100 * S, seconds))
    row = account.row(100 * S)
    assert row is not None
    assert (row.late_seconds, row.window.num_samples) == (2.0, 41)
    assert row.window_seconds == pytest.approx(40)
    ((name, seconds, num_times, longest),) = [
        (h.name, h.seconds, h.num_times, h.longest_seconds) for h in row.holders
    ]
    assert (name, seconds, num_times, longest) == ("new", 2.0, 2, 1.5)
    assert row.step is not None
    assert row.step.max_seconds == 5.0, "of the step that is over"


def test_a_record_that_cannot_be_is_none():
    fields = (S, 2 * S, 1.0, 3, 0, 0)
    assert wide_record(LOOP_LAG, "", fields, 0) == LoopLag(2 * S, 1.0, 3)
    assert wide_record(LOOP_HELD, "who", fields, 0) == LoopHeld("who", S, 2 * S, 1.0)
    for seconds in (-1.0, 2.0, float("nan"), float("inf")):
        assert wide_record(LOOP_LAG, "", (S, 2 * S, seconds, 3, 0, 0), 0) is None


def test_a_blocked_loop_is_reported_while_it_is_blocked():
    account = LoopAccount()
    account.add_lag(LoopLag(10 * S, 0.0, 1))
    account.add_lag(LoopLag(100 * S, 90.0, 1, "step > parse"))
    account.add_lag(LoopLag(110 * S, 100.0, 1, "step > parse"))
    row = account.row(110 * S)
    assert row is not None
    assert (row.window.num_samples, row.window.max_seconds) == (1, 100.0)
    assert [(h.name, h.seconds) for h in row.holders] == [("step > parse", 100.0)]
    assert (row.unanswered_seconds, row.unanswered_holder) == (100.0, "step > parse")
    account.add_lag(LoopLag(111 * S, 101.0, 1))
    account.add_held(LoopHeld("step > parse", 10 * S, 111 * S, 101.0))
    row = account.row(111 * S)
    assert row is not None
    assert (row.window.num_samples, row.late_seconds) == (1, 60.0)  # of the minute
    assert (row.unanswered_seconds, row.unanswered_holder) == (0.0, "")
    assert [h.num_times for h in row.holders] == [1]
    record = wide_record(LOOP_LAG | FAILED, "step > parse", (S, 2 * S, 1.0, 3, 0, 0), 0)
    assert record == LoopLag(2 * S, 1.0, 3, "step > parse")
