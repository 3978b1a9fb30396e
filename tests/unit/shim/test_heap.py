"""glibc is asked seldom, the less often the longer it takes, and not at all where it cannot be."""

from __future__ import annotations

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
        self.num_asked = 0

    def monotonic(self) -> float:
        return self.now

    def ask(self) -> SimpleNamespace:
        self.num_asked += 1
        self.now += self.cost_seconds
        return SimpleNamespace(uordblks=5, hblkhd=4, fordblks=3, ordblks=2, smblks=1)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(heap, "time", clock)
    monkeypatch.setattr(heap, "_mallinfo2", lambda _ctypes: clock.ask)
    monkeypatch.setitem(sys.modules, "ctypes", SimpleNamespace())
    return clock


def sampled(sampler: HeapSampler, clock: Clock, at: float) -> dict[str, float]:
    clock.now = at
    told: dict[str, float] = {}
    sampler.sample(told.__setitem__)
    return told


def test_it_is_asked_after_10_s_and_no_sooner_again(clock):
    sampler = HeapSampler()
    assert sampled(sampler, clock, 9.9) == {}
    told = sampled(sampler, clock, 10.1)
    assert told == {
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
