"""Memory that the agent has freed goes back to the kernel, and cycles are still found."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

JOB = """
import threading, time
from dfx_agent.base.own_memory import OwnMemory

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

blocks = [bytearray(20_000) for _ in range(10_000)]
del blocks[::2]
before, end = resident_bytes(), time.monotonic() + 120
memory = OwnMemory(first_seconds=0.01)
memory.start()
while resident_bytes() > before - 50_000_000:
    assert time.monotonic() < end, (before, resident_bytes())
    time.sleep(0.01)
assert [len(block) for block in blocks] == [20_000] * 5_000
(thread,) = (each for each in threading.enumerate() if each.name == "dfx-own-memory")
memory.stop()
thread.join(60)
assert not thread.is_alive()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_pages_between_pieces_in_use_are_given_back():
    subprocess.run([sys.executable, "-c", JOB], check=True)


CYCLES = """
import gc, weakref
from dfx_agent.base.own_memory import collect_rarely
collect_rarely()
assert gc.isenabled() and gc.get_freeze_count()
class Cycle: pass
cycle = Cycle()
cycle.itself, gone = cycle, weakref.ref(cycle)
del cycle
seen = []
gc.callbacks.append(lambda phase, info: seen.append(phase))
kept = [[n] for n in range(40_000)]
assert not seen and gone() is not None, seen
kept += [[n] for n in range(40_000)]
assert seen and gone() is None, seen
"""


def test_a_cycle_is_found_though_rarely_looked_for():
    done = subprocess.run(
        [sys.executable, "-c", CYCLES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


THREADS = """
import ctypes, threading
from dfx_agent.base.own_memory import OwnMemory

OwnMemory()
blocks = []
thread = threading.Thread(target=lambda: blocks.append(bytearray(20_000)))
thread.start()
thread.join()
ctypes.CDLL("libc.so.6").malloc_stats()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_threads_share_one_heap():
    words = [sys.executable, "-c", THREADS]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "Arena 0:" in done.stderr
    assert "Arena 1:" not in done.stderr
