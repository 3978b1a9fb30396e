"""A wall clock that was set is recognised: while the agent runs, and from before it started."""

from __future__ import annotations

import time

import pytest

from dfx_agent.agent.clock_watch import SHOWN_SECONDS, ClockWatch

HOUR_NS = 3600 * 10**9


class Clocks:
    """Wall and monotonic clock of this process."""

    def __init__(self) -> None:
        self.now_ns, self.offset_ns = 10**12, 10**18

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns + self.offset_ns


@pytest.fixture
def clocks(monkeypatch) -> Clocks:
    known = Clocks()
    monkeypatch.setattr(time, "monotonic_ns", known.monotonic_ns)
    monkeypatch.setattr(time, "time_ns", known.time_ns)
    monkeypatch.setattr(time, "time", lambda: known.time_ns() / 1e9)
    return known


def said(watch: ClockWatch) -> str:
    return " ".join(problem.message for problem in watch.problems())


def test_a_clock_that_is_set_back_while_the_agent_runs_is_said(clocks):
    watch = ClockWatch("node-a")
    watch.observe([clocks.offset_ns])
    assert said(watch) == ""
    clocks.offset_ns -= HOUR_NS
    watch.observe([clocks.offset_ns + HOUR_NS])
    assert said(watch).startswith("The wall clock of node-a was set back by 1.0 h (seen at ")
    assert watch.problems()[0].line.startswith("The wall clock"), "nothing was refused"


def test_an_agent_that_starts_after_the_step_sees_it_by_the_processes(clocks):
    watch = ClockWatch("node-a")
    watch.observe([clocks.offset_ns - 300 * 10**9, 0])
    assert "was set forward by 5 min" in said(watch)


def test_a_process_that_is_found_later_does_not_say_it_again(clocks):
    watch = ClockWatch("node-a")
    watch.observe([clocks.offset_ns])
    watch.observe([clocks.offset_ns + HOUR_NS])
    assert said(watch) == ""


def test_a_clock_that_is_slewed_was_not_set(clocks):
    watch = ClockWatch("node-a")
    for _ in range(100):
        clocks.offset_ns += 10**7
        watch.observe([clocks.offset_ns])
    assert said(watch) == ""


def test_it_is_said_for_an_hour(clocks):
    watch = ClockWatch("node-a")
    watch.observe([clocks.offset_ns])
    clocks.offset_ns += HOUR_NS
    watch.observe()
    clocks.now_ns += int(SHOWN_SECONDS * 1e9) + 1
    watch.observe()
    assert said(watch) == ""
