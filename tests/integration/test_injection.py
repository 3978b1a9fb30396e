"""Text into running interpreters by every route, and the interpreters never notice."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from injection_targets import PROGRAMS, interpreters, running_target

from dfx_agent.attach import inject as inject_module
from dfx_agent.attach import procfs
from dfx_agent.attach.inject import Helpers, inject
from dfx_agent.base.errors import AttachError, UsageError

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open") or os.uname().machine != "x86_64",
    reason="injection runs on Linux; aarch64 was not run yet",
)

FOUND = interpreters()
HERE = [sys.executable]
NONE_BLOCKED = {"0" * 16}
PARKED = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
while True:
    count(compute() == expected)
"""


def blocked_signals(pid: int) -> set[str]:
    """Signal masks of all threads."""
    texts = []
    for thread_id in procfs.thread_ids(pid):
        with contextlib.suppress(OSError):
            texts.append(Path(f"/proc/{pid}/task/{thread_id}/status").read_text())
    return {re.search(r"SigBlk:\s*(\w+)", text)[1] for text in texts}


def settled(look, wanted, seconds: float = 10.0):
    """What ``look`` returns, as soon as it is ``wanted`` or when the time is over."""
    deadline = time.monotonic() + seconds
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return seen


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("version", FOUND)
def test_text_runs_in_every_program_and_its_results_stay_exact(version, program, record_property):
    with running_target(FOUND[version], program) as target:
        done = [inject(target.pid, target.payload, budget_seconds=20) for _ in range(3)]
        assert [(item.ran, item.message) for item in done] == [(True, "")] * 3
        target.wait_for(3)
        target.goes_on()
        assert settled(lambda: blocked_signals(target.pid), NONE_BLOCKED) == NONE_BLOCKED
    longest = max(item.stop_seconds for item in done) * 1e3
    slowest = max(item.ran_seconds for item in done) * 1e3
    record_property("longest_stop_ms", longest)
    methods = sorted({item.method for item in done})
    print(f"{version} {program} {methods}: stop {longest:.2f} ms, run {slowest:.0f} ms")


@pytest.mark.parametrize("method", ["pep768", "thread", "pending"])
@pytest.mark.parametrize("version", FOUND)
def test_each_route_can_be_forced(version, method):
    with running_target(FOUND[version], PARKED) as target:
        if method == "pep768" and not version.startswith(("3.14", "3.15")):
            with pytest.raises(AttachError, match=r"has no remote debugging.*--method ptrace"):
                inject(target.pid, target.payload, method=method)
            return
        done = inject(target.pid, target.payload, method=method, budget_seconds=20)
        assert (done.method, done.ran) == (method, True)
        assert done.num_stops == 0 if method == "pep768" else done.num_stops >= 3
        target.wait_for(1)
        target.goes_on()


BAD_TEXTS = ["raise SystemExit(3)", "this is no Python", "é = '\\0'; x"]


@pytest.mark.parametrize("method", ["thread", "pending"])
@pytest.mark.parametrize("version", FOUND)
def test_no_error_of_the_text_reaches_the_target(version, method, capfd):
    with running_target(FOUND[version], PARKED) as target:
        for text in BAD_TEXTS:
            assert inject(target.pid, text, method=method, budget_seconds=20).ran
        inject(target.pid, target.payload, method=method, budget_seconds=20)
        target.wait_for(1)
        target.goes_on()
    assert capfd.readouterr().err == ""


def test_no_name_thread_or_memory_remains_in_the_target(tmp_path):
    reported = tmp_path / "told"
    report = f"import __main__; open({str(reported)!r}, 'w').write(repr(sorted(vars(__main__))))"
    with running_target(HERE, PARKED) as target:
        inject(target.pid, report, method="thread", budget_seconds=20)
        settled(reported.exists, wanted=True)
        assert settled(lambda: len(procfs.thread_ids(target.pid)), 2) == 2
        names, memory = reported.read_text(), executable_anonymous_memory(target.pid)
        for method in ("thread", "pending"):
            assert inject(target.pid, report, method=method, budget_seconds=20).ran
        assert settled(lambda: len(procfs.thread_ids(target.pid)), 2) == 2
        assert reported.read_text() == names
        assert settled(lambda: executable_anonymous_memory(target.pid), memory) == memory


def executable_anonymous_memory(pid: int) -> list[str]:
    return [f"{m.start:x}" for m in procfs.mappings(pid) if "x" in m.permissions and not m.path]


def test_the_text_runs_on_all_processors_and_its_thread_leaves_signals_to_others(tmp_path):
    reported = tmp_path / "told"
    report = (
        "import json, os, signal\n"
        "state = [sorted(os.sched_getaffinity(0)), len(signal.pthread_sigmask(0, [])), __name__]\n"
        f"open({str(tmp_path / 'part')!r}, 'w').write(json.dumps(state))\n"
        f"os.rename({str(tmp_path / 'part')!r}, {str(reported)!r})"
    )
    pinned = (
        f"import os, threading; everywhere = {sorted(os.sched_getaffinity(0))}\n"
        "def park():\n"
        "    os.sched_setaffinity(0, everywhere[:1])\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=park, daemon=True).start()\n"
        "while True: count(compute() == expected)\n"
    )
    with running_target(HERE, pinned) as target:
        assert inject(target.pid, report, method="thread", budget_seconds=20).ran
        assert settled(reported.exists, wanted=True)
    processors, num_blocked, name = json.loads(reported.read_text())
    assert processors == sorted(os.sched_getaffinity(0))
    assert num_blocked > 50
    assert name == "<dfx-agent>"


def test_a_name_of_the_program_does_not_catch_the_guard():
    shadowed = "exec = compile = open = print = int = None\n" + PARKED
    with running_target(HERE, shadowed) as target:
        for number, method in enumerate(("thread", "pending"), start=1):
            assert inject(target.pid, target.payload, method=method, budget_seconds=20).ran
            target.wait_for(number)


def test_memory_that_may_not_become_executable_still_takes_a_pending_call():
    refuse = "import ctypes; assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0\n"  # PR_SET_MDWE
    if subprocess.run([*HERE, "-c", refuse], check=False, capture_output=True).returncode:
        pytest.skip("no PR_SET_MDWE in this kernel (6.3 and newer have it)")
    with running_target(HERE, refuse + PARKED) as target:
        with pytest.raises(AttachError) as refused:
            inject(target.pid, target.payload, method="thread")
        assert str(refused.value) == (
            f"pid {target.pid} may not map executable memory; retry with `--method pending`"
        )
        for number, method in enumerate(("pending", "ptrace"), start=1):
            done = inject(target.pid, target.payload, method=method, budget_seconds=20)
            assert (done.method, done.ran) == ("pending", True)
            target.wait_for(number)
        target.goes_on()


def test_a_target_without_room_for_a_page_is_left_alone():
    limit = """
import resource, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
time.sleep(0.1)
size = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
resource.setrlimit(resource.RLIMIT_AS, (size, size))
while True:
    count(compute() == expected)
"""
    with running_target(HERE, limit) as target:
        with pytest.raises(AttachError) as refused:
            inject(target.pid, target.payload)
        assert str(refused.value) == (
            f"mmap did not happen in pid {target.pid} within 2 s; "
            "look at the limits of the job (ulimit -v, pids.max)"
        )
        target.goes_on()


def test_a_thread_that_cannot_be_stopped_is_released(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # posix_spawn waits, unstoppable, until its child has opened the file.
    spawn = f"""
import os
count(); count()
time.sleep(0.5)
os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[
    (os.POSIX_SPAWN_OPEN, 0, {str(fifo)!r}, os.O_RDONLY, 0)])
while True:
    count(compute() == expected)
"""
    with running_target(HERE, spawn) as target:
        assert settled(lambda: procfs.status(target.pid).state, "D") == "D"
        with pytest.raises(AttachError) as refused:
            inject(target.pid, target.payload, method="pending")
        assert str(refused.value) == (
            f"thread {target.pid} did not stop within 0.5 s (uninterruptible I/O?); retry"
        )
        fifo.write_bytes(b"")
        target.goes_on()
        assert inject(target.pid, target.payload, budget_seconds=20).ran
        target.wait_for(1)


def test_an_unknown_method_is_wrong_use():
    with pytest.raises(UsageError, match="unknown method gdb"):
        inject(os.getpid(), "pass", method="gdb")


HELD_FOR_LONG = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
begin = time.monotonic()
sum(range(3_000_000))
number = int(3_000_000 * 8 / (time.monotonic() - begin))
count(); count()
sum(range(number))
while True:
    count(compute() == expected)
"""


@pytest.mark.parametrize("method", ["thread", "pending"])
def test_a_text_that_waits_too_long_is_cancelled_and_never_runs(method):
    with running_target(HERE, HELD_FOR_LONG) as target:
        reported = []
        done = inject(
            target.pid,
            target.payload,
            method=method,
            budget_seconds=3,
            on_waiting=reported.append,
        )
        if done.ran:
            pytest.skip("the C call was over before the text was cancelled")
        assert done.ran_seconds is None
        assert re.fullmatch(
            r"the target did not return to Python for 3\.\d s; the attempt was cancelled",
            done.message,
        )
        assert reported[0].startswith("armed: waiting for the target to return to Python (")
        target.goes_on(60)
        assert target.num_payloads == 0


def test_an_interrupted_caller_leaves_nothing_behind():
    with running_target(HERE, HELD_FOR_LONG) as target:

        def interrupt(_line: str) -> None:
            raise KeyboardInterrupt

        try:
            inject(target.pid, target.payload, budget_seconds=30, on_waiting=interrupt)
        except KeyboardInterrupt:
            target.goes_on(60)
            assert target.num_payloads == 0
        else:
            pytest.skip("the C call was over too soon")


def request(target, method: str) -> bytes:
    now = {
        "pid": target.pid,
        "start_ticks": procfs.start_ticks(target.pid),
        "source": target.payload,
        "method": method,
        "budget_seconds": 5.0,
        "begin": time.monotonic(),
    }
    return json.dumps(now).encode() + b"\n"


@pytest.mark.parametrize(
    ("program", "method"),
    [("cpu", "pending"), ("asyncio", "auto"), ("malloc", "auto"), (PARKED, "thread")],
    ids=["cpu", "asyncio", "malloc", "parked"],
)
def test_a_helper_killed_at_any_moment_leaves_the_target_as_it_was(program, method):
    moments = random.Random(7)
    with running_target(HERE, program) as target:
        for _ in range(25):
            with inject_module._closed_afterwards(inject_module._start_helper()) as helper:
                helper.stdin.write(request(target, method))
                helper.stdin.flush()
                time.sleep(moments.uniform(0.03, 0.25))
                helper.kill()
        target.goes_on()
        assert settled(lambda: blocked_signals(target.pid), NONE_BLOCKED) == NONE_BLOCKED
        before = target.num_payloads
        assert inject(target.pid, target.payload, method=method, budget_seconds=20).ran
        target.wait_for(before + 1)


def test_helpers_started_ahead_serve_one_call_each_and_are_closed_afterwards():
    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children()}

    with running_target(HERE, "sleep") as target:
        before = children()
        with Helpers(2) as helpers:
            assert len(children() - before) == 2
            done = inject(target.pid, target.payload, helper=helpers.pop())
            assert done.ran
            assert len(children() - before) == 1
        assert helpers.pop() is None
        assert children() == before
        target.goes_on()


def test_two_agents_at_once_do_no_harm():
    with running_target(HERE, PARKED) as target:
        ran, refused = [], []

        def attach() -> None:
            for _ in range(8):
                try:
                    ran.append(inject(target.pid, target.payload, budget_seconds=20).ran)
                except AttachError as error:
                    refused.append(error.code)

        agents = [threading.Thread(target=attach) for _ in range(3)]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join()
        assert ran
        assert all(ran)
        assert set(refused) <= {"traced", "notparked"}
        target.goes_on()


def test_a_target_that_exits_while_attaching_exits_as_it_wanted():
    leaving = "count(); count(); time.sleep({}); sys.exit(7)"
    for delay in (0.05, 0.1, 0.15, 0.2, 0.25):
        with running_target(HERE, leaving.format(delay)) as target:
            try:
                done = inject(target.pid, target.payload, budget_seconds=3)
            except AttachError as error:
                expected = {"gone", "noproc", "notparked", "starting", "timeout"}
                assert error.code in expected  # noqa: PT017
            else:
                assert done.ran or done.message
            assert target.process.wait(20) == 7


def test_a_pid_that_now_names_another_process_is_refused(monkeypatch):
    with running_target(HERE, "sleep") as target:
        monkeypatch.setattr(inject_module.procfs, "start_ticks", lambda _pid: 1)
        with pytest.raises(AttachError, match="exited while attaching"):
            inject(target.pid, target.payload)
        monkeypatch.undo()
        assert target.num_payloads == 0


COMPUTING = {
    # Always up, which a fresh floating-point unit does not do.
    "rounding": """
import ctypes
ctypes.CDLL("libm.so.6").fesetround(0x800)
expected = compute()
while True:
    count(compute() == expected)
""",
    # Milliseconds without a system call, everything in the upper halves of vector registers.
    "vectors": """
import ctypes
spin = ctypes.CDLL("LIBRARY").spin
expected = spin(5_000_000)
while True:
    count(spin(5_000_000) == expected)
""",
}
SPIN = """
typedef unsigned int wide __attribute__((vector_size(32)));
int spin(int rounds) {
    wide x = {1, 2, 3, 4, 5, 6, 7, 8}, y = {9, 8, 7, 6, 5, 4, 3, 2};
    for (int i = 0; i < rounds; i++) {
        x += y ^ (x << 3);
        y ^= x + (y >> 1);
    }
    return x[0] ^ x[3] ^ x[4] ^ x[5] ^ x[6] ^ x[7] ^ y[5] ^ y[7];
}
"""


def vector_library(folder: Path) -> str:
    if shutil.which("gcc") is None or " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no gcc on PATH (Debian: apt-get install gcc), or a processor without AVX2")
    (folder / "spin.c").write_text(SPIN)
    subprocess.run(
        ["gcc", "-O2", "-mavx2", "-shared", "-o", folder / "spin.so", folder / "spin.c"], check=True
    )
    return str(folder / "spin.so")


@pytest.mark.parametrize("program", COMPUTING)
def test_registers_of_a_stopped_thread_are_restored(program, tmp_path):
    code = COMPUTING[program]
    if program == "vectors":
        code = code.replace("LIBRARY", vector_library(tmp_path))
    with running_target(HERE, code) as target:
        for number in range(1, 11):
            assert inject(target.pid, target.payload, method="pending", budget_seconds=20).ran
            target.wait_for(number)
        target.goes_on()


def test_a_sleep_is_neither_cut_nor_stretched_by_the_stops():
    sleeping = """
import ctypes, threading
class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
threading.Thread(target=threading.Event().wait, daemon=True)
def nap():
    rest = Timespec()
    assert ctypes.CDLL(None).nanosleep(ctypes.byref(Timespec(1, 0)), ctypes.byref(rest)) == 0
count(); count()
while True:
    begin = time.monotonic()
    nap()
    shared[3] = max(shared[3], int((time.monotonic() - begin) * 1e6))
    count(time.monotonic() - begin >= 1.0)
"""
    with running_target(HERE, sleeping) as target:
        time.sleep(0.5)
        for _ in range(4):
            inject(target.pid, "pass", method="thread", budget_seconds=10)
        target.goes_on()
        longest_seconds = target._word(3) / 1e6
    assert longest_seconds < 1.4, "each of 12 stops began the second again"


def test_the_helper_is_not_taken_for_a_job(monkeypatch):
    monkeypatch.setenv("DFX_AGENT", "1")
    with inject_module._closed_afterwards(inject_module._start_helper()) as helper:
        environment = Path(f"/proc/{helper.pid}/environ").read_bytes()
    assert b"DFX_AGENT" not in environment


def test_a_stopped_target_stays_stopped_and_continues_later():
    with running_target(HERE, "cpu") as target:
        os.kill(target.pid, signal.SIGSTOP)
        settled(lambda: procfs.status(target.pid).state, "T")
        with pytest.raises(AttachError, match="is stopped"):
            inject(target.pid, target.payload)
        assert procfs.status(target.pid).state == "T"
        os.kill(target.pid, signal.SIGCONT)
        target.goes_on()
