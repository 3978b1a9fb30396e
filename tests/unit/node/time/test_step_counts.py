"""Tokens and processor time of a step, from the records of one process."""

from __future__ import annotations

from dfx_agent.node.time.closed_step import StepCounts


def test_processor_time_of_a_step_ends_where_the_next_begins():
    counts = StepCounts()
    for step, busy_seconds in ((1, 10.0), (2, 10.5), (4, 10.75)):
        counts.begin_step(step, 7, busy_seconds)
    assert [counts.pop(step)[2] for step in (1, 2, 3, 4)] == [0.5, 0.25, None, None]


def test_of_another_thread_or_an_old_guest_it_is_unknown():
    counts = StepCounts()
    for step, thread, busy_seconds in ((1, 7, 10.0), (2, 8, 3.0), (3, 8, 3.5), (4, 8, 0.0)):
        counts.begin_step(step, thread, busy_seconds)
    assert [counts.pop(step)[2] for step in (1, 2, 3, 4)] == [None, 0.5, None, None]


def test_tokens_of_forward_passes_are_used_if_no_others_are_reported():
    counts = StepCounts()
    counts.add_tokens(1, "forward", 64.0)
    counts.add_tokens(1, "forward", 64.0)
    counts.add_tokens(2, "forward", 64.0)
    counts.add_tokens(2, "response", 10.0)
    assert counts.pop(1) == ({"forward": 128.0}, 128.0, None, None)
    assert counts.pop(2) == ({"response": 10.0}, 64.0, None, None)
    assert counts.pop(3) == ({}, None, None, None)


def test_samples_of_a_step_add_up_and_are_absent_where_none_were_counted():
    counts = StepCounts()
    counts.add_count(1, "forward/samples", 8.0)
    counts.add_count(1, "forward/samples", 4.0)
    counts.add_count(1, "flops/forward", 9.0)
    assert [counts.pop(step)[3] for step in (1, 2)] == [12.0, None]


def test_steps_that_are_never_closed_are_forgotten():
    counts = StepCounts()
    for step in range(1000):
        counts.add_tokens(step, "response", 1.0)
        counts.add_count(step, "forward/samples", 1.0)
        counts.begin_step(step, 7, 1.0 + step)
    counts.pop(1000)
    assert (len(counts._tokens), len(counts._samples), len(counts._busy)) == (16, 16, 16)
