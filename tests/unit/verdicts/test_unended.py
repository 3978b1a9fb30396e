"""A rank in torch's deadlock at the end is named; final work of a job never is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
from hang_scene import Rank, Scene, staged

from dfx_agent.judge.hang.verdict import _SEEN_SECONDS, DOES_NOT_END, QUIET_SECONDS
from dfx_agent.node.host.joined_thread import joined_by_main

# The shape of it: an object's end joins gloo's loop, which asks for the GIL. As torch, a C function
# joins; by PyDLL it holds the GIL, by CDLL it does not.
ENDING = """
import ctypes, sys, threading
libc = ctypes.CDLL(None)
joins = ctypes.PyDLL(None) if sys.argv[1] == "held" else libc
is_named = threading.Event()

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def loop(_):
    libc.prctl(15, sys.argv[2].encode(), 0, 0, 0)
    is_named.set()
    while True:
        pass

thread = ctypes.c_ulong()
libc.pthread_create(ctypes.byref(thread), None, loop, None)
is_named.wait()

class Reducer:
    def __del__(self):
        print("ends", flush=True)
        joins.pthread_join(thread, None)

def main():
    model = Reducer()

main()
"""
SLEEPS = "import time\nprint('ends', flush=True)\nwhile True: time.sleep(0.01)"
LATER = QUIET_SECONDS + 5


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def ends(scene: Scene, *command: str) -> Rank:
    """Rank 0 of a job whose other ranks have gone in an orderly way."""
    ranks = scene.warm_up(runs={0: (sys.executable, "-c", *command)})
    assert ranks[0].owner.stdout.readline() == b"ends\n"
    for rank in ranks[1:]:
        rank.segment.finish()
        rank.dies()
    return ranks[0]


def looks(scene: Scene, seconds: float) -> Iterator[str]:
    """Causes, as long as it takes to judge: that is by the real clock."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield scene.look(LATER).cause
        time.sleep(0.2)


def test_it_is_named_with_what_to_do(scene):
    rank = ends(scene, ENDING, "held", "pt_gloo_runloop")
    assert DOES_NOT_END in looks(scene, 300.0)
    verdict = scene.look(LATER)
    assert (verdict.state, verdict.ranks) == ("found", ("0",))
    assert verdict.summary.startswith("Rank 0 does not end: ")
    assert f"kill -9 {rank.owner.pid}" in verdict.action
    assert "waits for pt_gloo_runloop to end and holds Python's lock" in verdict.evidence[0]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((SLEEPS,), id="sleeps in Python"),
        pytest.param((ENDING, "free", "pt_gloo_runloop"), id="joins without the GIL"),
        pytest.param((ENDING, "held", "my_own_thread"), id="joins a thread of its own"),
    ],
)
def test_final_work_is_not(scene, command):
    ends(scene, *command)
    assert DOES_NOT_END not in looks(scene, _SEEN_SECONDS + 5)


def test_whose_guest_still_writes_stacks_does_not_hold_the_gil(scene):
    rank = ends(scene, ENDING, "held", "pt_gloo_runloop")
    rank.writes_stacks("main", "save_checkpoint")
    assert DOES_NOT_END not in looks(scene, _SEEN_SECONDS + 5)


def test_the_thread_that_is_joined_is_the_one(scene):
    rank = ends(scene, ENDING, "held", "pt_gloo_runloop")
    deadline = time.monotonic() + 60
    while (joined := joined_by_main(rank.owner.pid)) is None:
        assert time.monotonic() < deadline
    assert joined.name == "pt_gloo_runloop"
    assert joined.thread != rank.owner.pid
    assert joined_by_main(scene.ranks[1].owner.pid) is None, "it is gone"
