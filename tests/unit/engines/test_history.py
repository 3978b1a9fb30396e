"""How busy, how fast, over which window."""

import pytest

from dfx_agent.engines.exposition import Part
from dfx_agent.engines.history import WINDOW_SECONDS, History
from dfx_agent.snapshot import Histogram


def part(running=None, **counters):
    gauges = {} if running is None else {"running_requests": running}
    return Part(gauges=gauges, counters=counters)


def test_before_two_readings_nothing_is_said_of_a_window():
    history = History()
    history.add(part(3.0, generation_tokens=100.0), 10.0)
    assert (history.window_seconds, history.busy_ratio(), history.rates()) == (None, None, {})
    assert history.totals.counters == {"generation_tokens": 100.0}


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
        history.add(Part(histograms={"queue_time_seconds": Histogram((1.0,), counts, total)}), at)
    told = history.latencies()["queue_time_seconds"]
    assert (told.num, told.mean, told.p50) == (3.0, 3.0, 1.0)
