"""Run Python text in another process, from a helper process that is gone a moment later.

``inject`` starts ``python -m dfx_agent.attach.inject``, hands it one request as a line of JSON, and
reads lines of JSON: first ``armed`` (the target will run the text as soon as it gets to it), last
``done`` or ``refused``. The helper ends itself when its input closes, so the text is cancelled
whenever the caller goes away; killed at any moment it leaves the target running.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from dfx_agent.attach import procfs, refusals
from dfx_agent.attach.hijack import Hijacker
from dfx_agent.attach.pep768 import Script
from dfx_agent.attach.preflight import check_method, check_target
from dfx_agent.attach.stub import Injection
from dfx_agent.attach.target import Target, open_target, refusal_of
from dfx_agent.errors import AttachError

_ROOT = str(Path(__file__).resolve().parents[2])
_ARMING_SECONDS = 10.0  # the kernel ends a helper that needs longer, and with it every stop
_GRACE_SECONDS = 2.0
_PENDING_MAY_DO = {"notparked", "execmem"}  # what keeps a thread of our own away, not a queued call
_PROGRESS_SECONDS = 1.0
_HELD = "no thread of the target came back to Python: retry when its long C call is over"
_FINE_POLL_SECONDS, _POLL_SECONDS, _FINE_FOR_SECONDS = 0.0005, 0.005, 0.1


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


class _Waiting(Protocol):
    """Text on its way: stub.Queued or pep768.Script."""

    def has_begun(self) -> bool: ...
    def cancel(self) -> bool: ...


def inject(
    pid: int,
    source: str,
    *,
    method: str = "auto",
    budget_seconds: float = 5.0,
    on_waiting: Callable[[str], None] | None = None,
) -> Injected:
    """Run ``source`` in process ``pid``, in a thread and with globals of its own.

    Errors in the text are swallowed in the target. Compiling it holds the target's GIL: keep it
    small, and let it compile modules one by one. ``on_waiting`` is called about once a second with
    a line for people while the target has not got to it. After ``budget_seconds``, or when this
    call is interrupted, the text is cancelled. AttachError, with nothing changed in the target,
    when no route works; UsageError for an unknown method.
    """
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
    with _helper() as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            helper.stdin.write(json.dumps(request).encode() + b"\n")
            helper.stdin.flush()
        deadline = begin + _ARMING_SECONDS + budget_seconds + _GRACE_SECONDS
        for line in _lines(helper.stdout, deadline):
            if line is None:
                _tell(on_waiting, time.monotonic() - begin)
            elif "refused" in line:
                raise AttachError(*line["refused"])
            elif "done" in line:
                return Injected(**line["done"])
    raise refusals.helper_ended(pid, helper.returncode)


@contextlib.contextmanager
def _helper() -> Iterator[subprocess.Popen[bytes]]:
    """Gone at the end, whatever happens: its input closes and it cancels, or it is killed."""
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("DFX_", "PYTHON"))
    }
    code = f"import sys; sys.path[:0] = {[_ROOT]!r}; import runpy; "
    code += "runpy.run_module('dfx_agent.attach.inject', run_name='__main__')"
    command = [sys.executable, "-I", "-S", "-c", code]
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
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


def _serve_one_request() -> None:
    """What the helper does; it ends without cleaning up, which resumes whatever it still holds."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    gc.disable()  # a stop is no time for it
    line = sys.stdin.buffer.readline()
    if not line:  # the caller is gone already
        return
    request = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, _ARMING_SECONDS)
    try:
        done = _run(request)
    except AttachError as error:
        _say(refused=(error.code, error.reason, error.remedy))
    except PermissionError:
        refusal = refusal_of(request["pid"])
        _say(refused=(refusal.code, refusal.reason, refusal.remedy))
    else:
        _say(done=asdict(done))
    os._exit(0)


def _run(request: dict[str, Any]) -> Injected:
    pid, begin = request["pid"], request["begin"]
    with open_target(pid) as target:
        if procfs.start_ticks(pid) != request["start_ticks"]:
            raise refusals.gone(pid)
        method, waiting, stops = _arm(target, request["source"], request["method"])
        armed_seconds = time.monotonic() - begin
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(armed=armed_seconds)
        ran = _wait(waiting, begin + request["budget_seconds"])
        seconds = time.monotonic() - begin
    return Injected(
        method=method,
        armed_seconds=armed_seconds,
        ran=ran,
        ran_seconds=seconds if ran else None,
        stop_seconds=max(stops, default=0.0),
        num_stops=len(stops),
        message="" if ran else f"cancelled after {seconds:.1f} s; {_HELD}",
    )


def _arm(target: Target, source: str, wanted: str) -> tuple[str, _Waiting, list[float]]:
    """The route taken, the text on its way, and the seconds of each stop so far."""
    method = check_target(target).route(wanted)
    if method == "pep768":
        return method, Script(target, source), []
    hijacker = Hijacker(target.pid, target.memory, target.maps, target.machine)
    images = [target.runtime.image, *target.libc]
    injection = Injection(target.pid, target.memory, hijacker, images, target.machine)
    try:
        queued = injection.queue(source, target.maps, as_thread=method == "thread")
    except AttachError as error:
        if wanted == "thread" or error.code not in _PENDING_MAY_DO:
            raise
        method, queued = "pending", injection.queue(source, target.maps, as_thread=False)
    return method, queued, hijacker.stops


def _wait(waiting: _Waiting, deadline: float) -> bool:
    """True when the text has begun; cancelled at the deadline or when our input closes."""
    fine_until = time.monotonic() + _FINE_FOR_SECONDS
    while not waiting.has_begun():
        pause = _FINE_POLL_SECONDS if time.monotonic() < fine_until else _POLL_SECONDS
        is_abandoned = bool(select.select([sys.stdin], [], [], pause)[0])
        if is_abandoned or time.monotonic() > deadline:
            return not waiting.cancel()
    return True


def _say(**line: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve_one_request()
