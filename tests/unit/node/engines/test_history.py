"""How busy, how fast, over which window."""

import bisect

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dfx_agent.node.engines.exposition import EnginePart
from dfx_agent.node.engines.history import (
    WINDOW_SECONDS,
    EngineTotals,
    History,
    difference,
    latency,
)
from dfx_agent.snapshot import Histogram

BOUNDS = (0.1, 1.0, 5.0)
observations = st.lists(st.sampled_from([0.05, 0.1, 0.5, 2.0, 9.0]), max_size=8)


def part(running=None, **counters):
    gauges = {} if running is None else {"running_requests": running}
    return EnginePart(gauges=gauges, counters=counters)


def test_before_two_readings_nothing_is_said_of_a_window():
    history = History()
    history.add(part(3.0, generation_tokens=100.0), 10.0)
    assert (history.window_seconds, history.busy_ratio(), history.rates()) == (None, None, {})
    assert history.totals.counters == {"generation_tokens": 100.0}


def test_the_peak_of_the_kv_cache_stays_over_the_window_and_a_restart():
    history = History()
    history.add(part(1.0), 0.0)
    assert history.kv_cache_peak_ratio is None
    for at, usage in ((1.0, 0.2), (2.0, 0.9), (99.0, 0.1)):
        gauges = {"kv_cache_usage_ratio": usage}
        history.add(EnginePart(gauges=gauges), at, is_restart=at > 9)
    history.add(part(1.0), 100.0)
    assert history.kv_cache_peak_ratio == 0.9


def test_a_reading_stands_for_the_time_around_it():
    history = History()
    for at, running in ((0.0, 0.0), (2.0, 4.0), (4.0, 0.0), (6.0, 0.0)):
        history.add(part(running), at)
    assert history.busy_ratio() == pytest.approx(2.0 / 6.0)
    assert (history.busy_seconds, history.observed_seconds) == (2.0, 6.0)


def test_a_long_silence_is_not_known_to_be_busy_or_idle():
    history = History()
    history.add(part(1.0), 0.0)
    history.add(part(0.0), 50.0)
    assert history.observed_seconds == 15.0


def test_what_the_scheduler_says_itself_is_exact():
    history = History()
    for at, idle in ((0.0, 5.0), (2.0, 5.5), (4.0, 7.0)):
        history.add(part(1.0, idle_seconds=idle), at)
    assert history.busy_ratio() == pytest.approx(0.5)


def test_without_any_word_of_running_requests_nobody_is_idle():
    history = History()
    history.add(part(), 0.0)
    history.add(part(), 2.0)
    assert history.busy_ratio() is None


def test_the_window_moves_and_a_restart_is_counted():
    history = History()
    for i in range(60):
        history.add(part(1.0, generation_tokens=10.0 * i), 2.0 * i)
    assert history.window_seconds == WINDOW_SECONDS
    assert history.rates() == {"generation_tokens": 5.0}
    history.add(part(1.0, generation_tokens=4.0), 120.0)
    assert history.num_restarts == 1
    assert history.totals.counters["generation_tokens"] == 594.0


def test_latencies_are_of_the_window():
    history = History()
    for at, counts, total in ((0.0, (9.0, 9.0), 0.9), (2.0, (9.0, 12.0), 9.9)):
        history.add(
            EnginePart(histograms={"queue_time_seconds": Histogram((1.0,), counts, total)}), at
        )
    reported = history.latencies()["queue_time_seconds"]
    assert (reported.num, reported.mean, reported.p50) == (3.0, 3.0, 1.0)


def of(values, bounds=BOUNDS):
    ordered = sorted(values)
    counts = [float(bisect.bisect_right(ordered, bound)) for bound in bounds]
    return Histogram(bounds, (*counts, float(len(ordered))), float(sum(values)))


@given(st.lists(st.tuples(observations, st.booleans()), min_size=1, max_size=12), st.data())
def test_a_window_holds_what_was_observed_in_it_over_any_restarts(readings, data):
    """An engine observes, is read, may restart; its process tells that it did."""
    totals, since_start, states, seen = EngineTotals(), [], [], []
    for values, restarts in readings:
        if restarts:
            since_start = []
        since_start = since_start + values
        totals.add({"n": float(len(since_start))}, {"h": of(since_start)}, is_restart=restarts)
        states.append((totals.counters["n"], totals.histograms["h"]))
        seen.append(values)
    first = data.draw(st.integers(0, len(readings) - 1))
    last = data.draw(st.integers(first, len(readings) - 1))
    within = [value for values in seen[first + 1 : last + 1] for value in values]
    window = difference(states[last][1], states[first][1])
    assert window.counts == of(within).counts
    assert window.sum == pytest.approx(sum(within))
    assert states[last][0] - states[first][0] == len(within)


@given(observations, observations)
def test_a_restart_is_seen_by_counts_that_fell(before, after):
    totals = EngineTotals()
    totals.add({"n": float(len(before))}, {"h": of(before)})
    restarted = totals.add({"n": float(len(after))}, {"h": of(after)})
    is_lower = any(a > b for a, b in zip(of(before).counts, of(after).counts, strict=True))
    assert restarted == (is_lower or len(before) > len(after))
    assert totals.counters["n"] >= len(before)
    if restarted:
        assert totals.counters["n"] == len(before) + len(after)


def test_one_lower_counter_means_that_all_restarted():
    totals = EngineTotals()
    totals.add({"a": 10.0, "b": 1.0}, {})
    assert totals.add({"a": 2.0, "b": 5.0}, {})
    assert totals.counters == {"a": 12.0, "b": 6.0}


def test_other_bounds_begin_a_new_total():
    totals = EngineTotals()
    totals.add({}, {"h": of([0.5])})
    totals.add({}, {"h": of([0.5, 2.0], bounds=(1.0, 3.0))})
    assert totals.histograms["h"] == of([0.5, 2.0], bounds=(1.0, 3.0))


def test_quantiles_are_prometheus_own():
    histogram = Histogram((1.0, 2.0, 4.0), (10.0, 20.0, 20.0, 30.0), 60.0)
    assert histogram.quantile(0.5) == pytest.approx(1.5)  # 15 of 30: in the middle of (1, 2]
    assert histogram.quantile(0.1) == pytest.approx(0.3)
    assert histogram.quantile(0.99) == 4.0  # above all bounds: the highest
    assert Histogram((1.0,), (0.0, 0.0), 0.0).quantile(0.5) is None
    assert Histogram((), (4.0,), 2.0).quantile(0.5) is None


@given(st.lists(st.floats(0.001, 8.0), min_size=1, max_size=50), st.floats(0.01, 0.99))
@example([1.0, 1.0, 1.0, 0.0625, 0.0625, 0.0625], 0.5)
def test_a_quantile_lies_in_the_bucket_of_its_observation(values, share):
    histogram = of(values)
    got = histogram.quantile(share)
    exact = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    place = bisect.bisect_left(BOUNDS, exact)
    low = BOUNDS[place - 1] if place else 0.0
    high = BOUNDS[place] if place < len(BOUNDS) else BOUNDS[-1]
    assert low <= got <= high or place == len(BOUNDS)


def test_nothing_observed_has_no_latency():
    assert latency(of([])) is None
    reported = latency(Histogram((), (4.0,), 2.0))
    assert (reported.num, reported.mean, reported.p50) == (4.0, 0.5, None)
