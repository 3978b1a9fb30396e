"""Runs Python text in another process, by means of a short-lived helper process.

``inject`` starts the helper (injector.py), sends it one request as a line of JSON, and reads lines
of JSON: first ``armed`` (the target will run the text as soon as possible), last ``done`` or
``refused``. The helper exits when its input closes, so the text is cancelled whenever the caller
exits. If the helper is killed at any moment, the target continues to run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from dfx_agent.attach import procfs, refusals
from dfx_agent.attach.injector import ARMING_SECONDS
from dfx_agent.attach.preflight import check_method
from dfx_agent.base.errors import AttachError

Helper: TypeAlias = "subprocess.Popen[bytes]"

_ROOT = str(Path(__file__).resolve().parents[2])
_GRACE_SECONDS = 2.0
_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Injected:
    """Result of an injection."""

    method: str
    armed_seconds: float
    """From the call until the target was sure to run the text."""
    ran: bool
    """Whether the target has begun the text; if not, it was cancelled and never will."""
    ran_seconds: float | None
    """From the call until the text began; None if it did not."""
    stop_seconds: float
    """Longest time for which a thread of the target was stopped; 0 for pep768."""
    num_stops: int
    message: str


def inject(
    pid: int,
    source: str,
    *,
    method: str = "auto",
    budget_seconds: float = 5.0,
    helper: Helper | None = None,
    on_waiting: Callable[[str], None] | None = None,
) -> Injected:
    """Run ``source`` in process ``pid``, in a new thread with its own globals.

    Errors in the text are ignored in the target. Compiling the text holds the target's GIL, so it
    should be small and compile its modules one by one. ``helper`` is a helper that was started
    before, for this call alone; it exits afterwards. ``on_waiting`` is called about once a second
    with a line for people until the text begins. After ``budget_seconds``, or when this call is
    interrupted, the text is cancelled. Raises AttachError, with nothing changed in the target, if
    no route works, and UsageError for an unknown method.
    """
    with _closed_afterwards(helper or _start_helper()) as own_helper:
        done = _answer_of(own_helper, pid, source, method, budget_seconds, on_waiting)
    if done is None:
        raise refusals.helper_ended(pid, own_helper.returncode)
    return done


def _answer_of(
    helper: Helper,
    pid: int,
    source: str,
    method: str,
    budget_seconds: float,
    on_waiting: Callable[[str], None] | None,
) -> Injected | None:
    """The helper's result; None if it exited without one."""
    begin = time.monotonic()
    check_method(method)
    try:
        start_ticks = procfs.start_ticks(pid)
    except OSError:
        raise refusals.no_process(pid) from None
    request = {
        "pid": pid,
        "start_ticks": start_ticks,
        "source": source,
        "method": method,
        "budget_seconds": budget_seconds,
        "begin": begin,
    }
    assert helper.stdin is not None
    assert helper.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        helper.stdin.write(json.dumps(request).encode() + b"\n")
        helper.stdin.flush()
    deadline = begin + ARMING_SECONDS + budget_seconds + _GRACE_SECONDS
    for line in _lines(helper.stdout, deadline):
        if line is None:
            _report_waiting(on_waiting, time.monotonic() - begin)
        elif "refused" in line:
            raise AttachError(*line["refused"])
        elif "done" in line:
            return Injected(**line["done"])
    return None


class Helpers:
    """Helper processes that start while the caller is still busy; closed at the end of the block.

    A helper that gets no request does not touch any target.
    """

    def __init__(self, num_helpers: int = 0) -> None:
        self._ready = [_start_helper() for _ in range(num_helpers)]

    def pop(self) -> Helper | None:
        """A helper for one ``inject``; None if none is left. Any thread may call."""
        try:
            return self._ready.pop()
        except IndexError:
            return None

    def __enter__(self) -> Helpers:
        return self

    def __exit__(self, *_: object) -> None:
        while helper := self.pop():
            with _closed_afterwards(helper):
                pass


def _start_helper() -> Helper:
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("DFX_", "PYTHON"))
    }
    code = f"import sys; sys.path[:0] = {[_ROOT]!r}; "
    code += "from dfx_agent.attach import injector; injector.serve_one_request()"
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)


@contextlib.contextmanager
def _closed_afterwards(helper: Helper) -> Iterator[Helper]:
    """Close the helper's input in any case, so that it cancels; kill it if it does not exit."""
    try:
        yield helper
    finally:
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            helper.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            helper.kill()
            helper.wait()


def _lines(stdout: IO[bytes], deadline: float) -> Iterator[dict[str, Any] | None]:
    """Lines of the helper; None for every second without a line after "armed"."""
    is_armed = False
    rest = b""
    while (now := time.monotonic()) < deadline:
        ready, _, _ = select.select([stdout], [], [], min(_PROGRESS_SECONDS, deadline - now))
        if not ready:
            if is_armed:
                yield None
            continue
        data = os.read(stdout.fileno(), 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in map(json.loads, lines):
            is_armed = is_armed or "armed" in line
            yield line


def _report_waiting(on_waiting: Callable[[str], None] | None, seconds: float) -> None:
    if on_waiting is not None:
        on_waiting(waiting_text(seconds))


def waiting_text(seconds: float) -> str:
    """The line for people about a target that has not run the text yet."""
    return f"armed: waiting for the target to return to Python ({seconds:.0f} s so far)"
