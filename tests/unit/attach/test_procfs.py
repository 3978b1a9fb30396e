"""What /proc tells about real processes."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dfx_agent.attach import procfs

PRELUDE = "import sys, time; print('ready', flush=True); "


@pytest.fixture
def sleeper():
    """A Python that sleeps in a system call."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + "time.sleep(60)"], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


def test_status_names_state_owner_and_tracer(sleeper):
    while (status := procfs.status(sleeper)).state != "S":
        time.sleep(0.01)
    assert status.uids == (os.getuid(),) * 4
    assert status.gids == (os.getgid(),) * 4
    assert status.tracer_pid == 0
    assert status.permitted_capabilities == procfs.status(os.getpid()).permitted_capabilities
    os.kill(sleeper, signal.SIGSTOP)
    while procfs.status(sleeper).state != "T":
        time.sleep(0.01)


def test_a_name_with_spaces_and_parentheses_moves_no_field():
    rename = "open('/proc/self/comm', 'w').write(') S 1 (x'); "
    process = subprocess.Popen(
        [sys.executable, "-c", rename + PRELUDE + "time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        process.stdout.readline()
        now = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
        assert procfs.status(process.pid).name == ") S 1 (x"
        assert 0 <= now - procfs.start_ticks(process.pid) < 60 * os.sysconf("SC_CLK_TCK")
    finally:
        process.kill()
        process.communicate()


def test_mappings_are_those_of_the_kernel(sleeper):
    maps = procfs.mappings(sleeper)
    assert [m.start for m in maps] == sorted(m.start for m in maps)
    code = next(m for m in maps if "x" in m.permissions and "libc" in m.path)
    assert code.end > code.start
    assert any(m.path == "[stack]" for m in maps)
    assert procfs.executable(sleeper) == os.path.realpath(sys.executable)


def test_mappings_of_a_deleted_file_keep_its_name(tmp_path):
    held = tmp_path / "held with space"
    held.write_bytes(b"x" * 4096)
    code = "import mmap, os; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); "
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; " + code + PRELUDE + "time.sleep(60)", str(held)],
        stdout=subprocess.PIPE,
    )
    try:
        process.stdout.readline()
        held.unlink()
        assert str(held) in {m.path for m in procfs.mappings(process.pid)}
    finally:
        process.kill()
        process.communicate()


def test_a_blocked_thread_shows_its_system_call_and_a_running_one_none():
    ended = threading.Event()
    ids = []

    def park() -> None:
        ids.append(threading.get_native_id())
        ended.wait()

    thread = threading.Thread(target=park)
    thread.start()
    while not ids:
        time.sleep(0.01)
    time.sleep(0.1)
    call = procfs.current_syscall(os.getpid(), ids[0])
    assert call.number == {"x86_64": 202, "aarch64": 98}[os.uname().machine]  # futex
    inside = [m for m in procfs.mappings(os.getpid()) if m.start <= call.stack_pointer < m.end]
    assert len(inside) == 1
    assert ids[0] in procfs.thread_ids(os.getpid())
    # Who reads about itself runs.
    own = procfs.current_syscall(os.getpid(), threading.get_native_id())
    assert own is None or own.number != call.number
    ended.set()
    thread.join()


def test_memory_is_read_and_written_in_place():
    buffer = ctypes.create_string_buffer(b"before\0", 64)
    with procfs.TargetMemory(os.getpid()) as memory:
        assert memory.text(ctypes.addressof(buffer)) == b"before"
        memory.write(ctypes.addressof(buffer), (2**63 + 5).to_bytes(8, "little"))
        assert memory.word(ctypes.addressof(buffer)) == 2**63 + 5
        memory.write(ctypes.addressof(buffer), (-7).to_bytes(4, "little", signed=True))
        assert memory.int32(ctypes.addressof(buffer)) == -7
        assert memory.is_mapped(ctypes.addressof(buffer))
        assert not memory.is_mapped(8)
        with pytest.raises(OSError):
            memory.read(8, 8)


def test_text_stops_at_its_limit():
    buffer = ctypes.create_string_buffer(b"y" * 300)
    with procfs.TargetMemory(os.getpid()) as memory:
        assert memory.text(ctypes.addressof(buffer), 100)[:100] == b"y" * 100
        assert len(memory.text(ctypes.addressof(buffer), 100)) < 164


def test_memory_of_a_process_that_ended_fails(sleeper):
    at = next(m for m in procfs.mappings(sleeper) if m.path == "[stack]").end - 8
    with procfs.TargetMemory(sleeper) as memory:
        memory.word(at)
        os.kill(sleeper, signal.SIGKILL)
        os.waitid(os.P_PID, sleeper, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OSError):
            memory.word(at)
        assert procfs.status(sleeper).state == "Z"


def test_a_pid_that_does_not_exist_is_an_os_error():
    for look in (procfs.status, procfs.start_ticks, procfs.mappings, procfs.executable):
        with pytest.raises(OSError):
            look(2**22 + 1)
