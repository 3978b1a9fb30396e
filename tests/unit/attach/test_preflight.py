"""Every text that preflight has for a process, produced by a real process of that kind."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dfx_agent.attach import access, preflight, procfs
from dfx_agent.base.errors import AttachError, UsageError

OWN_MACHINE = os.uname().machine
READY = "import sys, time; sys.stdout.write('ready\\n'); sys.stdout.flush()\n"  # 2.7 reads it too
SLEEP = READY + "time.sleep(60)"
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17


@contextlib.contextmanager
def running(*command: str, **options):
    """The pid of a program that has said that it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, **options)
    try:
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def python(code: str, **options):
    return running(sys.executable, "-c", code, **options)


def texts(pid: int) -> set[str]:
    """What the routes say; one text where none of them works for the same reason."""
    checked = preflight.check(pid)
    assert not checked.works
    for route in checked.routes:
        assert (route.reason, route.remedy) != ("", "")
        with pytest.raises(AttachError) as refused:
            checked.route(route.name)
        assert str(refused.value) == f"{route.reason}; {route.remedy}"
        assert refused.value.exit_code == 2
    return {str(route.refusal) for route in checked.routes}


def test_an_idle_python_can_be_reached_by_ptrace():
    with python(SLEEP) as pid:
        checked = preflight.check(pid)
    assert checked.works
    assert checked.machine == OWN_MACHINE
    assert checked.python.startswith("{}.{}".format(*sys.version_info))
    works = {route.name: route.works for route in checked.routes}
    assert works == {"pep768": sys.version_info >= (3, 14), "thread": True, "pending": True}
    assert checked.route("ptrace") == "thread"


def test_a_python_that_only_computes_takes_a_pending_call():
    with python(READY + "while True: pass") as pid:
        checked = preflight.check(pid)
        (thread,) = (route for route in checked.routes if route.name == "thread")
        assert str(thread.refusal) == "no idle thread; retry with `--method pending`"
        assert checked.route("ptrace") == "pending"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python has remote debugging")
def test_a_python_before_3_14_has_no_remote_debugging():
    with python(SLEEP) as pid:
        checked = preflight.check(pid)
    assert str(checked.routes[0].refusal) == (
        f"Python {checked.python} has no remote debugging (3.14 and newer have); "
        "use `--method ptrace`"
    )


def test_an_unknown_method_is_wrong_use():
    with python(SLEEP) as pid, pytest.raises(UsageError, match="unknown method gdb; choose from"):
        preflight.check(pid).route("gdb")


def test_no_such_process():
    process = subprocess.Popen(["true"])
    process.wait()
    assert texts(process.pid) == {
        f"no process with pid {process.pid} in this pid namespace; look it up with `ps -e`"
    }


@pytest.mark.parametrize("pid", [0, -1, 2**40])
def test_no_pid_at_all(pid):
    assert texts(pid) == {
        f"no process with pid {pid} in this pid namespace; look it up with `ps -e`"
    }


def test_a_zombie():
    process = subprocess.Popen(["true"])
    while procfs.status(process.pid).state != "Z":
        time.sleep(0.01)
    assert texts(process.pid) == {f"pid {process.pid} is a zombie; name a process that still runs"}
    process.wait()


def test_a_stopped_process_stays_stopped():
    with python(SLEEP) as pid:
        os.kill(pid, signal.SIGSTOP)
        while procfs.status(pid).state != "T":
            time.sleep(0.01)
        assert texts(pid) == {f"pid {pid} is stopped (state T); `kill -CONT {pid}` first"}
        assert procfs.status(pid).state == "T"


def test_a_traced_process_names_its_tracer():
    trace = (
        "import ctypes, sys, time\n"
        f"sys.exit(1) if ctypes.CDLL(None).ptrace({PTRACE_SEIZE}, int(sys.argv[1]), 0, 0) else 0\n"
    )
    with python(SLEEP) as pid, running(sys.executable, "-c", trace + SLEEP, str(pid)) as tracer:
        assert procfs.status(pid).tracer_pid == tracer
        assert texts(pid) == {
            (
                f"pid {pid} is already traced by pid {tracer} (gdb, strace or another agent); "
                f"end pid {tracer} first"
            )
        }


def test_a_program_that_is_no_python():
    sleep = shutil.which("sleep")
    process = subprocess.Popen([sleep, "60"])
    try:
        time.sleep(0.2)
        assert texts(process.pid) == {
            (
                f"pid {process.pid} ({os.path.realpath(sleep)}) has no CPython runtime mapped: "
                "not a Python process; name the pid of a training process"
            )
        }
    finally:
        process.kill()
        process.wait()


def test_a_kernel_thread():
    try:
        name = Path("/proc/2/comm").read_text().strip()
    except OSError:
        name = ""
    if name != "kthreadd" or os.geteuid():
        pytest.skip("no kernel threads in this pid namespace, or not root")
    assert texts(2) == {
        (
            "pid 2 ([kthreadd]) has no CPython runtime mapped: not a Python process; "
            "name the pid of a training process"
        )
    }


WAITS = """
#include <stdio.h>
#include <unistd.h>
int main() { puts("ready"); fflush(stdout); sleep(60); return 0; }
"""
WAITS_WITHOUT_LIBC = r"""
static int call(int number, int a, const void *b, int c) {
    __asm__ volatile("int $0x80" : "+a"(number) : "b"(a), "c"(b), "d"(c) : "memory");
    return number;
}
void _start(void) { call(4, 1, "ready\n", 6); for (;;) call(29, 0, 0, 0); }
"""


def compiled(folder: Path, code: str, *flags: str) -> str:
    """A C program that waits."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on PATH; Debian: apt-get install gcc")
    source, program = folder / "wait.c", folder / "wait"
    source.write_text(code)
    made = subprocess.run(["gcc", *flags, "-o", program, source], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"gcc {' '.join(flags)} does not work here")
    return str(program)


def test_a_static_program(tmp_path):
    program = compiled(tmp_path, WAITS, "-static")
    with running(program) as pid:
        assert texts(pid) == {
            (
                f"cannot inject into {program} on {OWN_MACHINE} (statically linked); "
                "start the job with `dfx-agent run`"
            )
        }


def test_a_32_bit_program(tmp_path):
    program = compiled(tmp_path, WAITS_WITHOUT_LIBC, "-m32", "-nostdlib", "-static", "-fno-pic")
    with running(program) as pid:
        assert texts(pid) == {
            f"cannot inject into {program} on i386 (32-bit); start the job with `dfx-agent run`"
        }


def test_a_python_that_is_too_old():
    root = Path(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")))
    old = sorted(root.glob("versions/[23].[6789].*/bin/python"))
    if not old:
        pytest.skip("no Python older than 3.10 is installed under pyenv")
    for program in old:
        with running(str(program), "-c", SLEEP) as pid:
            assert texts(pid) == {
                f"pid {pid} runs Python 3.9 or older; run the job on Python 3.10 or newer"
            }


def test_a_python_that_starts_up_is_never_called_ready_too_early():
    seen = set()
    for delay in range(30):
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        time.sleep(delay * 0.0005)
        for route in preflight.check(process.pid).routes:
            seen.add(str(route.refusal).replace(str(process.pid), "PID"))
        process.kill()
        process.wait()
    expected = "Python in pid PID is not initialised: the process starts or ends; retry in a second"
    assert expected in seen


def as_other(prepare, pid: int) -> set[str]:
    """The texts in a child of ours in which ``prepare()`` ran."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            prepare()
            os.write(writer, json.dumps(sorted(texts(pid))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        answer = result.read()
    os.waitpid(child, 0)
    assert answer, "the child said nothing"
    return set(json.loads(answer))


def become_nobody() -> None:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)


def drop_ptrace_capability() -> None:
    """CAP_SYS_PTRACE out of all three sets of this process (capset of linux/capability.h)."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None)
    assert libc.capget(header, data) == 0
    for index in range(3):
        data[index] &= ~(1 << 19)
    assert libc.capset(header, data) == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_another_user():
    with python(SLEEP) as pid:
        assert as_other(become_nobody, pid) == {
            (
                f"pid {pid} belongs to uid 0, this agent runs as uid 65534 without CAP_SYS_PTRACE; "
                "run the agent as uid 0"
            )
        }


@needs_root
def test_another_group():
    def change_group() -> None:
        drop_ptrace_capability()
        os.setresgid(12345, 12345, 12345)

    with python(SLEEP) as pid:
        assert as_other(change_group, pid) == {
            (
                f"pid {pid} belongs to gid 0, this agent runs as gid 12345 without CAP_SYS_PTRACE; "
                "run the agent as gid 0"
            )
        }


@needs_root
def test_more_capabilities_than_ours():
    with python(SLEEP) as pid:
        assert as_other(drop_ptrace_capability, pid) == {
            (
                f"pid {pid} holds capabilities this agent lacks (CAP_SYS_PTRACE); "
                "give the agent the same ones"
            )
        }


NOT_DUMPABLE = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n" + SLEEP


@needs_root
def test_a_process_that_is_not_dumpable():
    python_of_all = shutil.which("python3", path="/usr/bin:/bin")
    if python_of_all is None:
        pytest.skip("no system Python, and another user cannot read ours")
    with running(python_of_all, "-c", NOT_DUMPABLE, user=65534, group=65534, cwd="/") as pid:
        assert as_other(become_nobody, pid) == {
            (
                f"pid {pid} is not dumpable (set-uid or file capabilities); "
                "grant the agent CAP_SYS_PTRACE"
            )
        }


def refuse_ptrace() -> None:
    """A seccomp filter that answers ptrace with EPERM, as container runtimes have it."""
    number = {"x86_64": 101, "aarch64": 117}[OWN_MACHINE]
    program = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, number),
        (0x06, 0, 0, 0x00050001),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    filters = b"".join(
        code.to_bytes(2, "little") + bytes((yes, no)) + value.to_bytes(4, "little")
        for code, yes, no, value in program
    )
    buffer = ctypes.create_string_buffer(filters, len(filters))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filters", ctypes.c_void_p))

    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    whole = Program(len(program), ctypes.addressof(buffer))
    assert libc.prctl(22, 2, ctypes.byref(whole), 0, 0) == 0


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="remote debugging needs no ptrace")
def test_an_agent_without_ptrace_by_seccomp():
    blocked = (
        "ptrace is blocked by seccomp here (Seccomp: 2); "
        "allow ptrace in the agent's seccomp profile"
    )
    with python(SLEEP) as pid:
        assert blocked in as_other(refuse_ptrace, pid)


def test_nothing_changes_in_the_process():
    with python(READY + "while True: time.sleep(0.01)") as pid:
        before = sorted(m.start for m in procfs.mappings(pid))
        for _ in range(5):
            preflight.check(pid)
        assert sorted(m.start for m in procfs.mappings(pid)) == before
        assert procfs.status(pid).tracer_pid == 0


def yama_text(scope: int, own_capabilities: int = 0) -> str:
    """Yama is in few test kernels: the rule alone, with the facts of this process."""
    status = procfs.status(os.getpid())
    own = status._replace(effective_capabilities=own_capabilities, permitted_capabilities=0)
    target = status._replace(permitted_capabilities=0, effective_capabilities=0)
    facts = access.AccessFacts(target, own, scope, is_dumpable=None, is_in_user_namespace=False)
    return str(access.refusal(7, facts))


def test_yama_is_named_with_its_scope():
    grant = "kernel.yama.ptrace_scope={} forbids it; grant the agent CAP_SYS_PTRACE"
    assert yama_text(1) == grant.format(1)
    assert yama_text(2) == grant.format(2)
    all_ranks = "kernel.yama.ptrace_scope=3 forbids it; start the job with `dfx-agent run`"
    assert yama_text(3, own_capabilities=1 << 19) == all_ranks
    assert yama_text(3) == all_ranks


def test_capabilities_go_by_their_names():
    assert access.capability_names(1 << 14 | 1 << 19) == "CAP_IPC_LOCK, CAP_SYS_PTRACE"
    assert access.capability_names(1 << 60) == "CAP_60"
