"""Anonymous memory of real processes, and its growth per step."""

import os
import random
import subprocess
import sys

import pytest

from dfx_agent.node.host.memory import MemoryTrend, ProcessBytes, parse_status, process_bytes

MIB = 1 << 20
GROWING = """
import sys
kept = []
for line in sys.stdin:
    kept.append(bytearray(b"x" * int(line)))
    print(len(kept), flush=True)
"""


@pytest.fixture
def grow():
    """``grow(n)`` lets a child keep n more bytes; ``grow.pid`` is its pid."""
    child = subprocess.Popen(
        [sys.executable, "-c", GROWING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def grow(num_bytes: int) -> None:
        child.stdin.write(f"{num_bytes}\n")
        child.stdin.flush()
        assert child.stdout.readline()

    grow.pid = child.pid
    grow.child = child
    yield grow
    child.stdin.close()
    child.wait(10)
    child.stdout.close()


def test_memory_held_by_a_process_is_seen(grow):
    grow(MIB)
    before = process_bytes(grow.pid).anonymous
    grow(64 * MIB)
    assert process_bytes(grow.pid).anonymous - before == pytest.approx(64 * MIB, abs=4 * MIB)


def test_a_leak_is_seen_as_bytes_per_step(grow):
    trend = MemoryTrend()
    for step in range(24):
        grow(16 * MIB if step == 2 else 2 * MIB)  # one odd step hardly moves the slope
        trend.add(step, process_bytes(grow.pid).anonymous)
    assert trend.slope_bytes_per_step() == pytest.approx(2 * MIB, rel=0.2)


def test_gone_processes_and_zombies_have_none():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_bytes(child.pid) == ProcessBytes(), "a zombie"
    child.wait()
    assert process_bytes(child.pid) == ProcessBytes(), "gone"


def test_a_status_of_an_old_kernel_has_none():
    status = "Name:\tRssAnon: 3 kB\nVmSize:\t 20 kB\nVmRSS:\t  12 kB\nRssAnon:\t     7 kB\n"
    assert parse_status(status) == ProcessBytes(7168, 12 * 1024, 20 * 1024)
    assert parse_status("Name:\tpython\nVmRSS:\t  12 kB\n") == ProcessBytes(None, 12 * 1024)


def test_no_slope_below_eight_steps():
    trend = MemoryTrend()
    for step in range(7):
        trend.add(step, 100.0 * step)
        assert trend.slope_bytes_per_step() is None
    trend.add(7, 700.0)
    assert trend.slope_bytes_per_step() == 100.0


def test_noise_and_outliers_do_not_move_the_slope():
    noise = random.Random(1)
    trend = MemoryTrend()
    for step in range(200):
        spike = 5e9 if step % 10 == 9 else 0.0
        trend.add(step, 1e9 + 1000.0 * step + noise.uniform(-3000, 3000) + spike)
    assert trend.slope_bytes_per_step() == pytest.approx(1000.0, rel=0.25)


def test_only_the_last_steps_count():
    trend = MemoryTrend()
    for step in range(200):
        trend.add(step, 1000.0 * min(step, 100))
    assert trend.slope_bytes_per_step() == 0.0


def test_missing_steps_are_counted_by_number():
    trend = MemoryTrend()
    for step in range(0, 80, 10):
        trend.add(step, 50.0 * step)
    assert trend.slope_bytes_per_step() == 50.0


def test_a_restarted_job_resets_the_state():
    trend = MemoryTrend()
    for step in range(20):
        trend.add(step, 1000.0 * step)
    trend.add(3, 5.0)
    assert trend.slope_bytes_per_step() is None
