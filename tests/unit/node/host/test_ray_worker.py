"""Workers of Ray: by the name of the process, and why they ended by their own log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dfx_agent.node.host.ray_worker import RayWorker
from dfx_agent.node.kernel_look import KernelLook

KILLED = "Disconnect, exit_type=INTENDED_SYSTEM_EXIT, exit_detail=it was killed by `ray.kill`.\n"
FAILED = "Executing worker exit: SYSTEM_ERROR - Worker exits unexpectedly by a signal.\n"


_SLEEP = """
import sys, time
log = open(sys.argv[2], "w")
open("/proc/self/comm", "w").write(sys.argv[1])
print("named", flush=True)
time.sleep(600)
"""


@contextmanager
def sleeping(name: str, log: Path) -> Iterator[int]:
    """The pid of a process of this name that holds ``log`` open and sleeps."""
    with subprocess.Popen(
        [sys.executable, "-c", _SLEEP, name, str(log)], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(("line", "was_ended"), [(KILLED, True), (FAILED, False)])
def test_the_log_of_a_worker_says_whether_ray_ended_it(tmp_path, line, was_ended):
    log = tmp_path / "python-core-worker-5a_17.log"
    with sleeping("ray::Sampler", log) as pid:
        worker = RayWorker(pid, is_living=True)
        log.write_text("a line\n" * 20_000 + line)
    worker.note_end()
    assert (worker.is_one, worker.was_ended_by_ray) == (True, was_ended)


def test_other_processes_and_logs_that_are_gone_say_nothing(tmp_path):
    log = tmp_path / "python-core-worker-5a_17.log"
    with sleeping("python", log) as pid:
        other = RayWorker(pid, is_living=True)
    with sleeping("ray::IDLE", log) as pid:
        worker = RayWorker(pid, is_living=True)
        log.unlink()
    for process in (other, worker):
        process.note_end()
    assert (other.is_one, other.was_ended_by_ray) == (False, False)
    assert (worker.is_one, worker.was_ended_by_ray) == (True, False)


def test_a_process_that_has_moved_since_the_last_look_is_not_suspended(tmp_path):
    """It is looked at only while it is quiet."""
    with sleeping("python", tmp_path / "log") as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        look = KernelLook(SimpleNamespace(pid=pid, state="live"))
        look.look_at_state(100, moved_ns=50)
        assert look.is_stopped_since(50)
        assert not look.is_stopped_since(150)
