"""How real processes ended, children of somebody else among them."""

import os
import platform
import signal
import subprocess
import sys
import time

import pytest

from dfx_agent.facts.rank import ExitStatus
from dfx_agent.node.host.exit_status import ExitWatch, zombie_status
from dfx_agent.wire.segment import start_ticks

TELLS_OF_REAPED = tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 15)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os._exit(0)", ExitStatus(0, None)),
        ("os._exit(3)", ExitStatus(3, None)),
        ("os.kill(os.getpid(), 9)", ExitStatus(None, 9)),
        ("os.kill(os.getpid(), 11)", ExitStatus(None, 11)),
    ],
)
def test_a_zombie_says_how_it_ended_and_a_reaped_process_to_who_watched_it(code, expected):
    script = f"import os, sys; sys.stdin.readline(); {code}"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    ticks = start_ticks(child.pid)
    zombie, reaped = ExitWatch(child.pid, ticks), ExitWatch(child.pid, ticks)
    assert not zombie.has_ended()
    assert zombie.status is None
    child.communicate(b"\n")  # reaps it
    assert reaped.has_ended()
    assert reaped.status == (expected if TELLS_OF_REAPED else None)
    assert zombie_status(child.pid, ticks) is None


def test_of_a_zombie_nothing_is_needed_but_its_pid():
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(5)"])
    ticks = start_ticks(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert zombie_status(child.pid, ticks) == ExitStatus(5, None)
    assert zombie_status(child.pid, ticks + 1) is None, "another process"
    assert ExitWatch(child.pid, ticks).status == ExitStatus(5, None)
    child.wait()


def test_a_child_of_another_process_is_reported_too():
    """As the agent sees ranks: its launcher is the parent, not the agent."""
    script = "sleep 300 & echo $!; wait $!; exec sleep 300"
    parent = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    watch = ExitWatch(pid, start_ticks(pid))
    os.kill(pid, signal.SIGKILL)
    while not watch.has_ended():
        time.sleep(0.01)
    status = watch.status
    parent.kill()
    parent.communicate()
    assert status in ([ExitStatus(None, 9)] if TELLS_OF_REAPED else [ExitStatus(None, 9), None])


@pytest.mark.parametrize(
    ("status", "text", "was_asked_for"),
    [
        (ExitStatus.from_wait_status(9), "killed by signal 9 (SIGKILL)", False),
        (ExitStatus.from_wait_status(11 | 0x80), "killed by signal 11 (SIGSEGV)", False),
        (ExitStatus.from_wait_status(15), "killed by signal 15 (SIGTERM)", True),
        (ExitStatus.from_wait_status(35), "killed by signal 35", False),
        (ExitStatus.from_wait_status(3 << 8), "ended with exit code 3", False),
        (ExitStatus.from_wait_status(130 << 8), "ended with exit code 130", True),
    ],
)
def test_in_words(status, text, was_asked_for):
    assert (str(status), status.was_asked_for) == (text, was_asked_for)


def test_a_watch_leaves_no_descriptor_behind():
    child = subprocess.Popen(["true"])
    before = len(os.listdir("/proc/self/fd"))
    watch = ExitWatch(child.pid, start_ticks(child.pid))
    child.wait()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert watch.status is None or watch.status.is_success
    assert len(os.listdir("/proc/self/fd")) == before
    assert watch.has_ended()
    with pytest.raises(ProcessLookupError):
        ExitWatch(child.pid, 1)


def test_without_a_descriptor_a_process_is_looked_up():
    script = "import sys; sys.stdin.readline(); sys.exit(3)"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    before = len(os.listdir("/proc/self/fd"))
    watch = ExitWatch(child.pid, start_ticks(child.pid), holds_open=False)
    assert not watch.has_ended()
    assert watch.status is None
    assert len(os.listdir("/proc/self/fd")) == before
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert watch.has_ended()
    assert watch.status == ExitStatus(3, None), "a zombie still says it"
    child.wait()
    assert watch.has_ended()


def test_without_a_descriptor_a_reused_pid_is_seen_by_and_by():
    watch = ExitWatch(os.getpid(), start_ticks(os.getpid()) + 1, holds_open=False)
    assert any(watch.has_ended() for _ in range(16))
