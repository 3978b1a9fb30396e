"""Run Python text in another process, from a helper process that is gone a moment later.

``inject`` starts the helper (injector.py), hands it one request as a line of JSON, and reads lines
of JSON: first ``armed`` (the target will run the text as soon as it gets to it), last ``done`` or
``refused``. The helper ends itself when its input closes, so the text is cancelled whenever the
caller goes away; killed at any moment it leaves the target running.
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
    """``ran``: the target has begun the text; if not, it was cancelled and never will.

    ``armed_seconds`` is from the call until the target was sure to run the text,
    ``ran_seconds`` until it began (None: it did not), ``stop_seconds`` the longest time one of its
    threads stood still (0 for pep768).
    """

    method: str
    armed_seconds: float
    ran: bool
    ran_seconds: float | None
    stop_seconds: float
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
    """Run ``source`` in process ``pid``, in a thread and with globals of its own.

    Errors in the text are swallowed in the target. Compiling it holds the target's GIL: keep it
    small, and let it compile modules one by one. ``helper`` is one that was started before, for
    this call alone; it is gone afterwards. ``on_waiting`` is called about once a second with
    a line for people while the target has not got to it. After ``budget_seconds``, or when this
    call is interrupted, the text is cancelled. AttachError, with nothing changed in the target,
    when no route works; UsageError for an unknown method.
    """
    with _gone_afterwards(helper or _start_helper()) as ours:
        done = _answer_of(ours, pid, source, method, budget_seconds, on_waiting)
    if done is None:
        raise refusals.helper_ended(pid, ours.returncode)
    return done


def _answer_of(
    helper: Helper,
    pid: int,
    source: str,
    method: str,
    budget_seconds: float,
    on_waiting: Callable[[str], None] | None,
) -> Injected | None:
    """None when it ended without one."""
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
            _tell(on_waiting, time.monotonic() - begin)
        elif "refused" in line:
            raise AttachError(*line["refused"])
        elif "done" in line:
            return Injected(**line["done"])
    return None


class Helpers:
    """Helper processes that start while their caller is still busy; gone at the end of the block.

    One that gets no request has nothing to do with any target.
    """

    def __init__(self, num_helpers: int = 0) -> None:
        self._ready = [_start_helper() for _ in range(num_helpers)]

    def take(self) -> Helper | None:
        """For one ``inject``, None when there is none left. Any thread may call."""
        try:
            return self._ready.pop()
        except IndexError:
            return None

    def __enter__(self) -> Helpers:
        return self

    def __exit__(self, *_: object) -> None:
        while helper := self.take():
            with _gone_afterwards(helper):
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
def _gone_afterwards(helper: Helper) -> Iterator[Helper]:
    """Whatever happens: its input closes and it cancels, or it is killed."""
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
    """The helper's lines as they come; None for every second without one after it said armed."""
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


def _tell(on_waiting: Callable[[str], None] | None, seconds: float) -> None:
    if on_waiting is not None:
        on_waiting(waiting_text(seconds))


def waiting_text(seconds: float) -> str:
    return f"armed: waiting for the target to return to Python ({seconds:.0f} s so far)"
