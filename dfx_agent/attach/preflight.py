"""Which routes into a process would work, and why others would not, without trying them.

Nothing is changed in the process, no thread of it is stopped, and no privilege is needed: what the
agent may not read is itself a result.
"""

from __future__ import annotations

import os
import sys
import time
from typing import NamedTuple

from dfx_agent.attach import hijack, pep768, procfs, refusals, stub
from dfx_agent.attach.target import Target, open_target
from dfx_agent.base.errors import AttachError, UsageError

ROUTES = ("pep768", "thread", "pending")
METHODS = ("auto", *ROUTES, "ptrace")
_IDLE_LOOKS, _IDLE_PAUSE_SECONDS = 20, 0.002


class Route(NamedTuple):
    """One route: ``pep768``, ``thread`` (a new thread) or ``pending`` (a call in the main thread).

    ``refusal`` is None if the route would work.
    """

    name: str
    refusal: AttachError | None

    @property
    def works(self) -> bool:
        return self.refusal is None

    @property
    def reason(self) -> str:
        return "" if self.refusal is None else self.refusal.reason

    @property
    def remedy(self) -> str:
        return "" if self.refusal is None else self.refusal.remedy


class Preflight(NamedTuple):
    """The routes for one pid; the first one that works is used."""

    pid: int
    python: str | None
    """Version such as ``3.12.1`` (``3.10`` for all of 3.10); None if it could not be read."""
    machine: str | None
    """Processor such as ``x86_64``; None if it could not be read."""
    routes: tuple[Route, ...]

    @property
    def works(self) -> bool:
        return any(route.works for route in self.routes)

    def route(self, method: str = "auto") -> str:
        """Name of the route for a ``--method``. Raises AttachError with the reason if none works.

        Python 3.14 and newer uses PEP 768 even if ptrace would work: if remote debugging is
        disabled, somebody wants it to be.
        """
        check_method(method)
        wanted = [route for route in self.routes if _is_meant(route, method)]
        for route in wanted:
            if route.works:
                return route.name
            if method == "auto" and route.refusal and route.refusal.code == "disabled":
                raise route.refusal
        raise wanted[-1].refusal or AssertionError


def check_method(method: str) -> None:
    """Raise UsageError for an unknown method."""
    if method not in METHODS:
        raise UsageError(f"unknown method {method}; choose from {', '.join(METHODS)}")


def _is_meant(route: Route, method: str) -> bool:
    if method == "ptrace":
        return route.name in {"thread", "pending"}
    return method in {"auto", route.name}


def check(pid: int) -> Preflight:
    """Check ``pid`` from outside. Refusals are part of the result; none is raised."""
    try:
        with open_target(pid) as target:
            return check_target(target)
    except AttachError as error:
        return Preflight(pid, None, None, tuple(Route(name, error) for name in ROUTES))


def check_target(target: Target) -> Preflight:
    """Check a process that is open already. Raises OSError if it exits meanwhile."""
    by_ptrace = _ptrace_refusal(target)
    routes = (
        Route("pep768", pep768.refusal(target)),
        Route("thread", by_ptrace or _idle_refusal(target)),
        Route("pending", by_ptrace),
    )
    version = target.runtime.version_text
    return Preflight(target.pid, version, target.machine.name, routes)


def _ptrace_refusal(target: Target) -> AttachError | None:
    if target.status.has_shadow_stack:
        return refusals.shadow_stack(target.pid)
    own = procfs.status(os.getpid())
    if own.seccomp and not _may_call_ptrace():
        return refusals.seccomp(own.seccomp)
    try:
        stub.symbols([target.runtime.image, *target.libc], (*stub.FUNCTIONS, *stub.LIBC_FUNCTIONS))
        hijack.find_sigreturn(target.memory, target.maps, target.machine)
    except LookupError as error:
        return refusals.cannot_inject(target.executable, target.machine.name, f"no {error.args[0]}")
    return None


def _idle_refusal(target: Target) -> AttachError | None:
    """Look several times, because a busy event loop is idle only now and then."""
    for _ in range(_IDLE_LOOKS):
        if hijack.idle_threads(target.pid, target.maps, target.machine):
            return None
        time.sleep(_IDLE_PAUSE_SECONDS)
    return refusals.no_idle_thread()


def _may_call_ptrace() -> bool:
    """Whether ptrace is permitted; tried in a child, as a seccomp filter may kill the caller."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; from dfx_agent.attach import ptrace; "
    code += "sys.exit(not ptrace.is_permitted())"
    child = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", code], os.environ)
    return os.waitpid(child, 0)[1] == 0
