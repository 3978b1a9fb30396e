"""Who holds an event loop is named, whatever holds it; a loop that gives way is let alone.

Each job is a process of its own, and says itself how long its code took.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dfx_agent.shim import event_loops
from dfx_agent.shim.event_loops import (
    NO_PROCESSOR,
    NO_TURN,
    OTHERS,
    LoopMonitor,
    _own,
    delayed_ns,
)
from dfx_agent.snapshot.event_loop import NO_CODE, UNNAMED
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import FAILED, LOOP_HELD, LOOP_LAG, RECORD

JOB = """
import asyncio, json, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import dfx_agent.shim as dfx
from dfx_agent.shim.lifecycle import guest

dfx.init(role="orchestrator", rank=0)
rows = [{"number": number, "text": "x" * 20} for number in range(600_000)]

def serialise():
    json.dumps(rows)

def concatenate():
    end, built = time.perf_counter() + 0.6, []
    while time.perf_counter() < end:
        built = built + [1] * 1000

def count(end):  # all until the same instant: one turn of each would be no crowd
    while time.perf_counter() < end:
        sum(number * number for number in range(10_000))

async def serialises():
    serialise()

async def concatenates():
    concatenate()

async def is_called():
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: (concatenate(), done.set()))
    await done.wait()

async def fans_out():
    loop, end = asyncio.get_running_loop(), time.perf_counter() + 0.6
    with ThreadPoolExecutor(256) as pool:
        await asyncio.gather(*[loop.run_in_executor(pool, count, end) for _ in range(256)])

async def stands():
    end = time.perf_counter() + 1.6
    while time.perf_counter() < end:
        pass

async def gives_way():
    await asyncio.sleep(0.5)

def is_found():
    monitor, running = guest._loops, asyncio.get_running_loop()
    loops = monitor._loops.values() if monitor else ()
    return any(found.loop() is running and found._answered_ns for found in list(loops))

async def main(phase):
    while not is_found():
        await asyncio.sleep(0.05)
    for step in range(3):
        dfx.set_step(step)
        begin = time.perf_counter()
        await phase()
        print(time.perf_counter() - begin)
        await asyncio.sleep(0.4)

{run}
"""
PLAIN = "asyncio.run(main({phase}))"
# as Ray's actors and servers do: a loop in a thread
IN_A_THREAD = """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
asyncio.run_coroutine_threadsafe(main({phase}), loop).result()
"""
# as Ray's actors do where uvloop is installed; no frame of Python's runs such a loop
UVLOOP = """
import uvloop
loop = uvloop.new_event_loop()
thread = threading.Thread(target=loop.run_forever, daemon=True)
thread.start()
asyncio.run_coroutine_threadsafe(main({phase}), loop).result()
loop.call_soon_threadsafe(loop.stop)
thread.join()
"""
ON_UVLOOP = "import uvloop\nuvloop.run(main({phase}))"
TWO_LOOPS = """
import uvloop
others = uvloop.new_event_loop()
thread = threading.Thread(target=others.run_forever, daemon=True)
thread.start()
over = threading.Event()
async def waits():
    while not over.is_set():
        await gives_way()
waiting = asyncio.run_coroutine_threadsafe(waits(), others)
asyncio.run(main({phase}))
over.set()
waiting.result()
others.call_soon_threadsafe(others.stop)
thread.join()
"""


RUNS = {
    "asyncio.run": PLAIN,
    "in a thread": IN_A_THREAD,
    "uvloop.run": ON_UVLOOP,
    "uvloop in a thread": UVLOOP,
    "two loops": TWO_LOOPS,
}


class Done:
    """A job that has ended: what it said, and what was recorded of its loop."""

    def __init__(self, folder: Path, phase: str, run: str) -> None:
        job = JOB.replace("{run}", run.replace("{phase}", phase))
        environment = {**os.environ, "DFX_DIR": str(folder), "DFX_AGENT": "1"}
        command = [sys.executable, "-c", job]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        self.took = [float(line) for line in done.stdout.split()]
        (path,) = folder.glob("*.seg")
        reader = SegmentReader(str(path))
        packed, part = b"", reader.ring.poll()
        while part:
            packed, part = packed + bytes(part), reader.ring.poll()
        records = list(RECORD.iter_unpack(packed))
        self.lags = [record[3] for record in records if record[8] == LOOP_LAG]
        unanswered = [record for record in records if record[8] == LOOP_LAG | FAILED]
        self.unanswered = {reader.name(record[9]) or "" for record in unanswered}
        self.held: dict[str, float] = {}
        for record in records:
            if record[8] == LOOP_HELD:
                name = reader.name(record[9]) or ""
                self.held[name] = self.held.get(name, 0.0) + record[3]


@pytest.fixture
def folder(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize(
    ("run", "phase"),
    [*((run, "concatenates") for run in RUNS.values()), (UVLOOP, "is_called")],
    ids=[*RUNS, "a callback of uvloop"],
)
def test_python_code_that_does_not_give_way_is_named(folder, run, phase):
    if "uvloop" in run:
        pytest.importorskip("uvloop", reason="no uvloop; pip install '.[test]' installs it")
    done = Done(folder, phase, run)
    no_room = done.held.pop(NO_PROCESSOR, 0.0)  # of a machine that is full
    name = max(done.held, key=lambda name: done.held[name])
    assert "concatenate" in name
    # asked twenty times a second: so much of each may be missing
    assert done.held[name] <= sum(done.took) + 0.1
    assert done.held[name] + no_room >= sum(done.took) * 0.5
    assert max(done.lags) <= max(done.took) + 0.5


def test_c_code_that_holds_the_interpreter_lock_is_named(folder):
    """The thread that looks cannot run meanwhile either."""
    done = Done(folder, "serialises", PLAIN)
    assert any("serialise" in name for name in done.held), done.held
    assert max(done.lags) >= min(done.took) * 0.5


def test_many_threads_that_keep_the_interpreter_are_named(folder):
    done = Done(folder, "fans_out", PLAIN)
    assert any("many threads in count" in name for name in done.held), done.held


def test_a_loop_blocked_for_a_second_is_reported_at_once(folder):
    done = Done(folder, "stands", PLAIN)
    assert any("stands" in name for name in done.unanswered), done.unanswered


def test_a_loop_that_gives_way_is_asked_and_nobody_is_named(folder):
    done = Done(folder, "gives_way", PLAIN)
    assert len(done.lags) >= 10
    # a machine without room may hold it up: then no code of the job is to blame
    assert not any("gives_way" in name or "main" in name for name in done.held)


def test_own_code_is_named_before_that_of_packages_and_of_python():
    def code(file: str):
        return compile("0", file, "eval")

    stdlib, package = code(os.__file__), code("/env/lib/site-packages/httpx/_client.py")
    own, frozen = code("/job/train.py"), code("<frozen importlib._bootstrap_external>")
    assert _own([frozen, stdlib, package, own]) is own
    assert _own([frozen, stdlib, package]) is package
    assert _own([frozen, stdlib]) is None


LEAVES = """
import asyncio, threading, time
import uvloop
import dfx_agent.shim as dfx
from dfx_agent.shim.event_loops import LoopMonitor
from dfx_agent.shim.running_loops import running_loops

dfx.init(role="orchestrator", rank=0)
loop = uvloop.new_event_loop()
thread = threading.Thread(target=loop.run_forever)
thread.start()
end = threading.Event()
async def stays():
    while not end.is_set():
        await asyncio.sleep(0.05)
run = asyncio.run_coroutine_threadsafe(stays(), loop)
class Writer:
    step = None
    def thread_id(self): return 0
    def step_now(self): return 0
    def emit(self, *record): told.append(record)
told, monitor = [], LoopMonitor()
while not told:  # found by its task, asked, and its answer seen
    monitor._check(Writer(), time.monotonic_ns())
    time.sleep(0.01)
assert [loop for loop, _ in running_loops()] == [loop]
assert [known._ident for known in monitor._loops.values()] == [thread.ident]
end.set()
run.result()
loop.call_soon_threadsafe(loop.stop)
thread.join()
loop.close()
monitor._check(Writer(), time.monotonic_ns())
assert not monitor._loops and not running_loops()
threading.Thread(target=sum, args=([1],)).start()  # no asyncio in this one: nothing is claimed
assert not running_loops()
"""


def test_a_loop_of_uvloop_is_found_by_its_tasks_and_forgotten_when_it_ends(folder):
    pytest.importorskip("uvloop", reason="no uvloop; pip install '.[test]' installs it")
    environment = {**os.environ, "DFX_DIR": str(folder), "DFX_AGENT": "1"}
    subprocess.run([sys.executable, "-c", LEAVES], env=environment, check=True)


def test_the_kernel_says_how_long_a_thread_waited():
    assert delayed_ns(threading.get_native_id()) >= 0
    assert delayed_ns(2**31 - 1) == 0


def test_a_process_without_asyncio_has_no_thread_for_it(folder):
    probe = (
        "import sys, threading; import dfx_agent.shim as dfx; dfx.init(rank=0); dfx.set_step(1);"
        "print([t.name for t in threading.enumerate()], 'asyncio' in sys.modules)"
    )
    environment = {**os.environ, "DFX_DIR": str(folder), "DFX_AGENT": "1"}
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['MainThread'] False"


def test_who_holds_a_loop_for_long_finds_a_name_after_many_who_did_not():
    monitor = LoopMonitor()
    for number in range(70):
        monitor._limit_name(f"library {number}", 0.1)
    assert monitor._limit_name("library 71", 0.1) == OTHERS
    assert monitor._limit_name("pack_batch", 30.0) == "pack_batch"
    for number in range(100):
        monitor._limit_name(f"job {number}", 2.0)
    assert monitor._limit_name("job 101", 2.0) == OTHERS


def test_what_the_guest_says_where_no_code_is_named_is_what_the_judge_reads():
    assert OTHERS == UNNAMED
    assert all(name.startswith(NO_CODE) for name in (NO_PROCESSOR, NO_TURN))


class _Running:
    """A loop that is asked and does not answer."""

    def is_closed(self):
        return False

    def is_running(self):
        return True

    def call_soon_threadsafe(self, *call):
        self.call = call


def test_time_before_an_answer_does_not_count_again_when_the_monitor_itself_is_late(monkeypatch):
    monkeypatch.setattr(event_loops, "blocking_code", lambda *_: "work (job.py)")
    running = _Running()
    loop = event_loops._Loop(running, threading.get_ident())
    loop._answered_ns = answered_ns = time.monotonic_ns()
    assert loop.poll(None, answered_ns - 10**9, None)
    asked_ns = running.call[2]
    assert asked_ns >= answered_ns
