"""Walking another thread's frames: what is told, and that it ends no process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from dfx_agent.shim.frames import MAX_FRAMES, codes_of, frames_of, threads_now

# Finalizers run in whoever starts the collector, and give the interpreter away. In CPython 3.11 a
# loop over f_back ends this process by SIGSEGV, mostly within seconds.
_FINALIZERS = """
import gc, sys, threading, time
from dfx_agent.shim.frames import codes_of, frames_of

sys.setswitchinterval(1e-6)
gc.set_threshold(50, 5, 5)

class Node:
    def __init__(self): self.itself = self
    def __del__(self): sum(n for n in range(30))

def leaf(n):
    for _ in range(3): Node()
    return n
def odd(n): return leaf(n) + even(n - 1) if n > 0 else 0
def even(n): return odd(n - 1) + len([leaf(k) for k in range(2)]) if n > 0 else 0

num_walks = num_seen = 0
def walk(ident):
    global num_walks, num_seen
    while not over:
        codes = codes_of(ident) if num_walks % 2 else [f.f_code for f in frames_of(ident)]
        num_seen += any(code.co_name == "odd" for code in codes)
        num_walks += 1

over = False
walker = threading.Thread(target=walk, args=(threading.get_ident(),))
walker.start()
while num_seen < 20_000:
    odd(20)
    even(7)
over = True
walker.join()
assert gc.isenabled()
"""


@pytest.fixture
def standing():
    """Ident of a thread that stands in ``inner`` in ``outer``."""
    stands, may_end = threading.Event(), threading.Event()

    def inner():
        stands.set()
        may_end.wait()

    def outer():
        inner()

    thread = threading.Thread(target=outer)
    thread.start()
    stands.wait()
    yield thread.ident
    may_end.set()
    thread.join()


def test_code_of_another_thread_is_listed_innermost_first(standing):
    names = [code.co_name for code in codes_of(standing)]
    assert names.index("inner") + 1 == names.index("outer")
    assert names[-1] == "_bootstrap"
    assert [frame.f_code for frame in frames_of(standing)] == codes_of(standing)
    assert standing in threads_now()


def test_a_thread_that_has_ended_has_no_frames():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    ident = max(threads_now()) + 1
    assert (codes_of(ident), frames_of(ident)) == ([], [])
    assert gc.isenabled()


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_left_as_it_was(standing, is_on):
    (gc.enable if is_on else gc.disable)()
    try:
        assert codes_of(standing)
        assert frames_of(standing)
        assert threads_now()
        assert gc.isenabled() == is_on
    finally:
        gc.enable()


def test_a_deep_stack_is_listed_to_its_bound():
    def deep(number):
        return deep(number - 1) if number else codes_of(threading.get_ident())

    codes = deep(MAX_FRAMES + 50)
    assert len(codes) == MAX_FRAMES
    assert {code.co_name for code in codes[2:]} == {"deep"}


def test_finalizers_of_the_job_do_not_end_it():
    job = [sys.executable, "-c", _FINALIZERS]
    done = subprocess.run(job, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
