"""All messages about processes that cannot be attached to: the reason and the remedy."""

from __future__ import annotations

from dfx_agent.base.errors import AttachError

_START_WITH_US = "start the job with `dfx-agent run`"


def no_process(pid: int) -> AttachError:
    reason = f"no process with pid {pid} in this pid namespace"
    return AttachError("noproc", reason, "look it up with `ps -e`")


def gone(pid: int) -> AttachError:
    reason = f"pid {pid} exited while attaching"
    return AttachError("gone", reason, "name a process that still runs")


def zombie(pid: int) -> AttachError:
    return AttachError("gone", f"pid {pid} is a zombie", "name a process that still runs")


def traced(pid: int, tracer_pid: int) -> AttachError:
    reason = f"pid {pid} is already traced by pid {tracer_pid} (gdb, strace or another agent)"
    return AttachError("traced", reason, f"end pid {tracer_pid} first")


def stopped(pid: int, state: str) -> AttachError:
    reason = f"pid {pid} is stopped (state {state})"
    return AttachError("stopped", reason, f"`kill -CONT {pid}` first")


def other_uid(pid: int, uid: int, own_uid: int) -> AttachError:
    reason = (
        f"pid {pid} belongs to uid {uid}, this agent runs as uid {own_uid} without CAP_SYS_PTRACE"
    )
    return AttachError("uid", reason, f"run the agent as uid {uid}")


def other_gid(pid: int, gid: int, own_gid: int) -> AttachError:
    reason = (
        f"pid {pid} belongs to gid {gid}, this agent runs as gid {own_gid} without CAP_SYS_PTRACE"
    )
    return AttachError("uid", reason, f"run the agent as gid {gid}")


def other_user_namespace(pid: int) -> AttachError:
    reason = f"pid {pid} is outside the user namespace of this agent"
    return AttachError("userns", reason, "run the agent outside of it")


def lacks_capabilities(pid: int, names: str) -> AttachError:
    reason = f"pid {pid} holds capabilities this agent lacks ({names})"
    return AttachError("caps", reason, "give the agent the same ones")


def yama(scope: int) -> AttachError:
    remedy = _START_WITH_US if scope == 3 else "grant the agent CAP_SYS_PTRACE"
    return AttachError("yama", f"kernel.yama.ptrace_scope={scope} forbids it", remedy)


def not_dumpable(pid: int) -> AttachError:
    reason = f"pid {pid} is not dumpable (set-uid or file capabilities)"
    return AttachError("dumpable", reason, "grant the agent CAP_SYS_PTRACE")


def security_module(pid: int) -> AttachError:
    reason = f"the kernel refuses access to pid {pid} (a security module such as AppArmor?)"
    return AttachError("lsm", reason, _START_WITH_US)


def seccomp(mode: int) -> AttachError:
    reason = f"ptrace is blocked by seccomp here (Seccomp: {mode})"
    return AttachError("seccomp", reason, "allow ptrace in the agent's seccomp profile")


def not_python(pid: int, executable: str) -> AttachError:
    reason = f"pid {pid} ({executable}) has no CPython runtime mapped: not a Python process"
    return AttachError("notpython", reason, "name the pid of a training process")


def cannot_inject(executable: str, machine: str, why: str) -> AttachError:
    return AttachError(
        "arch", f"cannot inject into {executable} on {machine} ({why})", _START_WITH_US
    )


def too_old(pid: int, version: str) -> AttachError:
    reason = f"pid {pid} runs Python {version} or older"
    return AttachError("old", reason, "run the job on Python 3.10 or newer")


def free_threaded(pid: int, version: str) -> AttachError:
    reason = f"pid {pid} runs free-threaded Python {version}"
    return AttachError("freethreaded", reason, "run the job on a build with the GIL")


def starting(pid: int) -> AttachError:
    reason = f"Python in pid {pid} is not initialised: the process starts or ends"
    return AttachError("starting", reason, "retry in a second")


def shadow_stack(pid: int) -> AttachError:
    reason = f"pid {pid} runs with a shadow stack, which ptrace injection would break"
    return AttachError("shstk", reason, _START_WITH_US)


def no_idle_thread() -> AttachError:
    return AttachError("notparked", "no idle thread", "retry with `--method pending`")


def left_its_call(thread_id: int) -> AttachError:
    return AttachError("notparked", f"thread {thread_id} left its system call", "retry")


def did_not_stop(thread_id: int, seconds: float) -> AttachError:
    reason = f"thread {thread_id} did not stop within {seconds:g} s (uninterruptible I/O?)"
    return AttachError("dstate", reason, "retry")


def did_not_happen(pid: int, what: str, seconds: float) -> AttachError:
    reason = f"{what} did not happen in pid {pid} within {seconds:g} s"
    return AttachError("timeout", reason, "look at the limits of the job (ulimit -v, pids.max)")


def no_executable_memory(pid: int) -> AttachError:
    reason = f"pid {pid} may not map executable memory"
    return AttachError("execmem", reason, "retry with `--method pending`")


def no_space(pid: int) -> AttachError:
    return AttachError("nospace", f"pid {pid} has no free range of addresses", _START_WITH_US)


def no_remote_debugging(version: str) -> AttachError:
    reason = f"Python {version} has no remote debugging (3.14 and newer have)"
    return AttachError("pep768", reason, "use `--method ptrace`")


def unknown_remote_debugging(version: str) -> AttachError:
    reason = f"the remote debugging of Python {version} is not known to this dfx-agent"
    return AttachError("pep768", reason, "use `--method ptrace`")


def remote_debugging_disabled(pid: int) -> AttachError:
    reason = f"remote debugging is switched off in pid {pid} (PYTHON_DISABLE_REMOTE_DEBUG)"
    return AttachError("disabled", reason, "`--method ptrace` overrides")


def no_writable_folder(pid: int) -> AttachError:
    reason = f"no folder of pid {pid} can be written (/tmp, /dev/shm, /var/tmp)"
    return AttachError("folder", reason, "use `--method ptrace`")


def helper_ended(pid: int, status: int) -> AttachError:
    reason = f"the helper that injects into pid {pid} ended with status {status}"
    return AttachError("helper", reason, "retry")
