"""The scheduler's counters over steps: shared out evenly between two readings, and no further."""

import mmap
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.facts.steps import SchedTimes
from dfx_agent.node.host.processor_time import (
    _MOST_SAMPLES,
    ProcessorTimes,
    parse_schedstat,
    thread_times,
    threads_per_processor,
    times_by_thread,
)

SECOND = 10**9


def read_at(*rows: tuple[float, float, float]) -> ProcessorTimes:
    times = ProcessorTimes()
    for seconds, ran, delayed in rows:
        times.add(round(seconds * SECOND), SchedTimes(round(ran * SECOND), round(delayed * SECOND)))
    return times


def between(times: ProcessorTimes, begin: float, end: float) -> tuple[float, float] | None:
    found = times.between(round(begin * SECOND), round(end * SECOND))
    return None if found is None else (found.ran_ns / SECOND, found.delayed_ns / SECOND)


def test_between_two_readings_it_is_shared_out_evenly():
    times = read_at((10, 5, 1), (11, 5.5, 1.2), (12, 5.5, 2.2))
    assert between(times, 10, 11) == pytest.approx((0.5, 0.2))
    assert between(times, 10.5, 11.5) == pytest.approx((0.25, 0.6))
    assert between(times, 11.25, 11.75) == pytest.approx((0, 0.5))


def test_what_nobody_saw_is_not_known():
    times = read_at((10, 5, 1), (11, 5.5, 1.2))
    assert between(times, 9, 11) is not None, "next to it"
    assert between(times, 2, 11) is None
    assert between(times, 10, 14) is None
    assert between(read_at((10, 5, 1)), 10, 10) is None


def test_another_thread_resets_the_state():
    times = read_at((10, 5, 1), (11, 6, 1))
    times.add(12 * SECOND, SchedTimes(1, 1), (7, 8))
    assert between(times, 10, 11) is None


@given(st.lists(st.tuples(st.integers(1, 2 * SECOND), st.integers(0, SECOND)), min_size=2))
def test_steps_add_up_to_what_the_kernel_counted(deltas):
    times, now, ran = ProcessorTimes(), 0, 1
    for elapsed, more in deltas:
        now, ran = now + elapsed, ran + more
        times.add(now, SchedTimes(ran, 2 * ran))
    first, last = deltas[0][0], now
    middle = (first + last) // 2
    parts = [times.between(first, middle), times.between(middle, last)]
    assert sum(p.ran_ns for p in parts) == ran - 1 - deltas[0][1]
    assert sum(p.delayed_ns for p in parts) == 2 * sum(p.ran_ns for p in parts)


def test_long_steps_are_covered_by_few_samples():
    times = read_at(*((n, n / 2, n / 4) for n in range(1, 5 * _MOST_SAMPLES)))
    assert len(times._samples) <= _MOST_SAMPLES
    assert between(times, 1, 5 * _MOST_SAMPLES - 1) == pytest.approx(
        ((5 * _MOST_SAMPLES - 2) / 2, (5 * _MOST_SAMPLES - 2) / 4)
    )
    assert between(times, 700, 1001) == pytest.approx((150.5, 75.25))


def test_the_last_half_stays_exact_after_thinning_out():
    ran = [n * n for n in range(_MOST_SAMPLES + 1)]
    times = read_at(*((n, ran[n], 0) for n in range(_MOST_SAMPLES + 1)))
    assert len(times._samples) == _MOST_SAMPLES + 1 - _MOST_SAMPLES // 4
    for n in range(_MOST_SAMPLES // 2, _MOST_SAMPLES):
        assert between(times, n, n + 1) == (ran[n + 1] - ran[n], 0)
    assert between(times, 1, 2) == (2, 0), "an odd one is gone: half of 0 to 4"
    assert between(times, 0, 2) == (4, 0)


def test_values_reach_two_seconds_outside_the_readings():
    times = read_at((10, 5, 1), (11, 5.5, 1.2))
    assert between(times, 8, 13) == pytest.approx((2.5, 1.0))
    assert between(times, 7.99, 13) is None
    assert between(times, 8, 13.01) is None
    assert between(times, 11, 10) == (0, 0), "counters never go back"


def test_it_reads_the_given_thread_from_the_kernel():
    own = os.getpid(), threading.get_native_id()
    times = ProcessorTimes()
    times.look(0, *own)
    times.look(SECOND, *own)
    known = thread_times(*own) is not None
    assert (times.between(0, SECOND) is not None) is known
    times.look(2 * SECOND, os.getpid(), 2**22 + 1)  # no such thread: what is known stays
    assert (times.between(0, SECOND) is not None) is known


@pytest.mark.parametrize(
    ("line", "times"),
    [
        (b"59862 46914 28\n", (59862, 46914)),
        (b"0 0 0\n", None),  # a kernel that does not count
        (b"", None),
        (b"x y z", None),
        (b"12", None),
    ],
)
def test_the_line_of_the_kernel(line, times):
    found = parse_schedstat(line)
    assert (found and found[:2]) == times


@given(st.binary(max_size=64))
def test_any_line_is_read(line):
    parse_schedstat(line)


def test_a_thread_of_this_process():
    before = thread_times(os.getpid(), threading.get_native_id())
    if before is None:  # this kernel has no counters: nothing is concluded from them
        return
    sum(range(10**6))
    after = thread_times(os.getpid(), threading.get_native_id())
    assert after.ran_ns > before.ran_ns
    assert 0 < after.share <= 1
    assert SchedTimes(0, 0).share is None
    assert thread_times(os.getpid(), 2**22 + 1) is None


def test_page_faults_of_a_thread_are_counted_between_two_readings():
    times, own = ProcessorTimes(), (os.getpid(), threading.get_native_id())
    if thread_times(*own) is None:
        return
    times.look(10 * SECOND, *own)
    num_pages = 5000
    with mmap.mmap(-1, num_pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(num_pages):
            memory[page * mmap.PAGESIZE] = 1
    times.look(11 * SECOND, *own)
    had = times.between(10 * SECOND, 11 * SECOND)
    assert num_pages <= had.num_faults < 2 * num_pages
    assert 0 <= had.system_ns <= 2 * had.ran_ns + 20_000_000, "of clock ticks"


def test_the_crowd_between_two_readings_is_what_the_later_one_saw():
    times = ProcessorTimes()
    for seconds, crowd in ((10, 1.0), (11, 3.0), (13, 9.0)):
        times.add(seconds * SECOND, SchedTimes(seconds * SECOND, 0, crowd))
    assert times.between(10 * SECOND, 11 * SECOND).crowd == pytest.approx(3.0)
    assert times.between(10 * SECOND, 13 * SECOND).crowd == pytest.approx(7.0)
    assert times.between(12 * SECOND, 12 * SECOND).crowd is None


def test_this_process_and_this_host_are_counted():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        threads, main = times_by_thread(os.getpid()), thread_times(os.getpid(), os.getpid())
        assert main is not None
        assert threads.keys() >= {os.getpid(), thread.native_id}
        assert 0 < threads[os.getpid()].ran_ns <= main.ran_ns
        assert threads[thread.native_id].num_turns >= 1
    finally:
        stop.set()
        thread.join()
    assert times_by_thread(2**22 + 1) == {}
    crowd = threads_per_processor()
    assert crowd is not None
    assert crowd >= 0
