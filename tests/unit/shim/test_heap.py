"""glibc is asked seldom, the less often the longer it takes, and not at all where it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dfx_agent.shim import heap
from dfx_agent.shim.heap import HeapSampler


class Clock:
    """What ``time`` is to the sampler; asking glibc takes ``cost_seconds``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost_seconds = 0.001
        self.wait_seconds = 0.0  # for the interpreter, on a busy machine
        self.used_seconds = 0.0
        self.num_asked = 0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.used_seconds

    def ask(self) -> SimpleNamespace:
        self.num_asked += 1
        self.used_seconds += self.cost_seconds
        self.now += self.cost_seconds + self.wait_seconds
        return SimpleNamespace(uordblks=5, hblkhd=4, fordblks=3, ordblks=2, smblks=1)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(heap, "time", clock)
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "")
    monkeypatch.setattr(heap, "_mallinfo2", lambda _ctypes: clock.ask)
    monkeypatch.setitem(sys.modules, "ctypes", SimpleNamespace())
    return clock


def sampled(sampler: HeapSampler, clock: Clock, at: float) -> dict[str, float]:
    clock.now = at
    reported: dict[str, float] = {}
    sampler.sample(reported.__setitem__)
    return reported


def test_it_is_asked_after_10_s_and_no_sooner_again(clock):
    sampler = HeapSampler()
    assert sampled(sampler, clock, 9.9) == {}
    reported = sampled(sampler, clock, 10.1)
    assert reported == {
        "heap/used_bytes": 5.0, "heap/mapped_bytes": 4.0, "heap/free_bytes": 3.0,
        "heap/num_free_pieces": 3.0,
    }  # fmt: skip
    assert sampled(sampler, clock, 22.0) == {}, "2 s more for a millisecond"
    assert sampled(sampler, clock, 22.2)


def test_what_takes_long_is_asked_seldom_and_then_no_more(clock):
    sampler = HeapSampler()
    clock.cost_seconds = 0.05
    assert sampled(sampler, clock, 20.0)
    assert sampled(sampler, clock, 129.0) == {}
    clock.cost_seconds = 0.2
    assert sampled(sampler, clock, 131.0)["heap/given_up"] == pytest.approx(0.2)
    assert sampled(sampler, clock, 10_000.0) == {}
    assert clock.num_asked == 2


def test_a_busy_machine_is_no_reason_to_give_up(clock):
    sampler = HeapSampler()
    clock.wait_seconds = 0.5
    assert sampled(sampler, clock, 20.0)
    assert "heap/given_up" not in sampled(sampler, clock, 35.0)
    assert sampled(sampler, clock, 50.0)


def test_ctypes_that_is_just_being_imported_is_waited_for(clock, monkeypatch):
    half = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))
    monkeypatch.setitem(sys.modules, "ctypes", half)
    sampler = HeapSampler()
    assert sampled(sampler, clock, 20.0) == {}
    half.__spec__._initializing = False
    assert sampled(sampler, clock, 40.0)


@pytest.mark.parametrize("names", ["heap", "forward,heap", "all"])
def test_nobody_is_asked_where_the_hook_is_left_out(clock, monkeypatch, names):
    monkeypatch.setenv("DFX_DISABLE_HOOKS", names)
    sampler = HeapSampler()
    assert sampled(sampler, clock, 20.0) == {}
    assert clock.num_asked == 0


def test_a_job_without_ctypes_is_not_given_it(clock, monkeypatch):
    monkeypatch.delitem(sys.modules, "ctypes")
    sampler = HeapSampler()
    assert sampled(sampler, clock, 20.0) == {}
    assert "ctypes" not in sys.modules
    monkeypatch.setitem(sys.modules, "ctypes", SimpleNamespace())
    assert sampled(sampler, clock, 40.0), "the job has loaded it since"


def test_where_glibc_does_not_have_it_nobody_asks_again(clock, monkeypatch):
    def without(_ctypes: object) -> None:
        clock.num_asked += 1
        raise AttributeError("mallinfo2")

    monkeypatch.setattr(heap, "_mallinfo2", without)
    sampler = HeapSampler()
    assert sampled(sampler, clock, 20.0) == sampled(sampler, clock, 40.0) == {}
    assert clock.num_asked == 1


def test_the_real_one_says_what_was_given_out_and_what_is_free():
    probe = """
import ctypes
from dfx_agent.shim.heap import _mallinfo2
ask = _mallinfo2(ctypes)
before = ask()
blocks = [bytearray(10_000) for _ in range(10_000)]
given = ask()
last = blocks[-1]
del blocks
freed = ask()
assert given.uordblks - before.uordblks > 90e6, (given.uordblks, before.uordblks)
assert freed.fordblks - given.fordblks > 90e6, (freed.fordblks, given.fordblks)
"""
    subprocess.run([sys.executable, "-c", probe], check=True)


OTHER_MALLOC = """
#include <stddef.h>
extern void *__libc_malloc(size_t);
void *malloc(size_t size) { return __libc_malloc(size); }
"""


def test_glibc_is_not_asked_where_another_malloc_is_preloaded(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build another malloc with")
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(OTHER_MALLOC)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    probe = "import ctypes; from dfx_agent.shim.heap import _mallinfo2; print(_mallinfo2(ctypes))"
    for preloaded, answer in (("", "FuncPtr"), (str(library), "None")):
        environment = {**os.environ, "LD_PRELOAD": preloaded}
        command = [sys.executable, "-c", probe]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert answer in done.stdout


TORN = """
import ctypes, os, threading
from dfx_agent.shim.heap import _mallinfo2
ask, over = _mallinfo2(ctypes), threading.Event()
def churn():
    while not over.is_set():
        held = [bytearray(size) for size in (600, 1500, 9000, 200_000) * 20]
        del held[::2]
threads = [threading.Thread(target=churn) for _ in range(10)]
for thread in threads:
    thread.start()
for number in range(3000):
    told = ask()
    assert max(told.arena, told.uordblks, told.fordblks) < 1 << 40
    if number % 500 == 0:
        child = os.fork()
        if child == 0:
            os._exit(0 if ask().arena < 1 << 40 else 3)
        assert os.waitpid(child, 0)[1] == 0
over.set()
"""


def test_it_may_be_asked_while_other_threads_allocate_and_the_process_forks():
    subprocess.run([sys.executable, "-W", "ignore", "-c", TORN], check=True)
