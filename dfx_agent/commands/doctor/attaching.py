"""Whether a guest can be brought into a running process, and by which way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator

from dfx_agent.attach import preflight
from dfx_agent.attach.discover import DiscoveredJob
from dfx_agent.attach.preflight import Preflight
from dfx_agent.commands.doctor.finding import Finding

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
# what each scope means for a process that is no child of the agent
_SCOPES = {
    "0": ("ok", "of the same user may be attached to", ""),
    "1": ("problem", "may be attached to by root or CAP_SYS_PTRACE alone",
          "sysctl kernel.yama.ptrace_scope=0, attach as root, or start jobs with `dfx-agent run`"),
    "2": ("problem", "may be attached to by CAP_SYS_PTRACE alone",
          "attach as root, or start jobs with `dfx-agent run`"),
    "3": ("problem", "may not be attached to until the next boot",
          "start jobs with `dfx-agent run`"),
}  # fmt: skip


def findings(pid: int | None) -> Iterator[Finding]:
    """Of the job of ``pid``; without one of a process that is started for it."""
    yield _yama()
    if pid is None:
        yield _own_child()
        return
    members = DiscoveredJob(pid).members()
    if not members:
        text = f"pid {pid} belongs to no Python job that runs"
        yield Finding("attach", "problem", text, "see `dfx-agent attach --check --pid PID`")
    for member in members:
        yield _routes(str(member), preflight.check(member.pid))


def _yama() -> Finding:
    try:
        with open(_YAMA, encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        return Finding("ptrace", "ok", "the kernel has no Yama: rights of the user decide")
    state, text, remedy = _SCOPES.get(scope, _SCOPES["3"])
    return Finding("ptrace", "ok" if state == "ok" else "problem", f"processes {text}", remedy)


def _own_child() -> Finding:
    """A Python that sleeps, as a thread of a job that waits."""
    command = [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = preflight.check(child.pid)
        child.kill()
    return _routes("attach", found)


def _routes(subject: str, found: Preflight) -> Finding:
    working = [route.name for route in found.routes if route.works]
    python = f"Python {found.python}: " if found.python else ""
    if working:
        return Finding(subject, "ok", f"{python}a guest can come in by {', '.join(working)}")
    reasons, remedies = (
        _distinct(r.reason for r in found.routes),
        _distinct(r.remedy for r in found.routes),
    )
    return Finding(subject, "problem", f"{python}{'; '.join(reasons)}", "; ".join(remedies))


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, texts)))
