"""The helper process of inject.py: serves one request and exits, which resumes stopped threads.

It imports little, because on a busy machine its start is most of the time of an attach.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
from typing import Any, Protocol

from dfx_agent.attach import procfs, refusals
from dfx_agent.attach.hijack import Hijacker
from dfx_agent.attach.pep768 import Script
from dfx_agent.attach.preflight import check_target
from dfx_agent.attach.stub import Injection
from dfx_agent.attach.target import Target, open_target, refusal_of
from dfx_agent.base.errors import AttachError

ARMING_SECONDS = 10.0  # the kernel kills a helper that takes longer
_ALLOW_PENDING = {"notparked", "execmem"}  # refusals of a new thread, but not of a queued call
_CANCELLED = "the target did not return to Python for {:.1f} s; the attempt was cancelled"
_FINE_POLL_SECONDS, _POLL_SECONDS, _FINE_FOR_SECONDS = 0.0005, 0.005, 0.1


class _Waiting(Protocol):
    """A text that waits in the target: stub.Queued or pep768.Script."""

    def has_begun(self) -> bool: ...
    def cancel(self) -> bool: ...


def serve_one_request() -> None:
    """Read a request, answer, and exit, which resumes any thread that is still stopped."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    gc.disable()  # no collection while a thread is stopped
    line = sys.stdin.buffer.readline()
    if not line:  # the caller has exited already
        return
    request = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, ARMING_SECONDS)
    try:
        done = _run(request)
    except AttachError as error:
        _send(refused=(error.code, error.reason, error.remedy))
    except PermissionError:
        refusal = refusal_of(request["pid"])
        _send(refused=(refusal.code, refusal.reason, refusal.remedy))
    else:
        _send(done=done)
    os._exit(0)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """Fields of inject.Injected."""
    pid, begin = request["pid"], request["begin"]
    with open_target(pid) as target:
        if procfs.start_ticks(pid) != request["start_ticks"]:
            raise refusals.gone(pid)
        method, waiting, stops = _arm(target, request["source"], request["method"])
        armed_seconds = time.monotonic() - begin
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(armed=armed_seconds)
        ran = _wait(waiting, begin + request["budget_seconds"])
        seconds = time.monotonic() - begin
    return {
        "method": method,
        "armed_seconds": armed_seconds,
        "ran": ran,
        "ran_seconds": seconds if ran else None,
        "stop_seconds": max(stops, default=0.0),
        "num_stops": len(stops),
        "message": "" if ran else _CANCELLED.format(seconds),
    }


def _arm(target: Target, source: str, wanted: str) -> tuple[str, _Waiting, list[float]]:
    """Queue the text; return (route, waiting text, seconds of each stop)."""
    method = check_target(target).route(wanted)
    if method == "pep768":
        return method, Script(target, source), []
    hijacker = Hijacker(target.pid, target.memory, target.maps, target.machine)
    images = [target.runtime.image, *target.libc]
    injection = Injection(target.pid, target.memory, hijacker, images, target.machine)
    try:
        queued = injection.queue(source, target.maps, as_thread=method == "thread")
    except AttachError as error:
        if wanted == "thread" or error.code not in _ALLOW_PENDING:
            raise
        method, queued = "pending", injection.queue(source, target.maps, as_thread=False)
    return method, queued, hijacker.stops


def _wait(waiting: _Waiting, deadline: float) -> bool:
    """True if the text has begun; cancel it at the deadline or when the input closes."""
    fine_until = time.monotonic() + _FINE_FOR_SECONDS
    while not waiting.has_begun():
        pause = _FINE_POLL_SECONDS if time.monotonic() < fine_until else _POLL_SECONDS
        is_abandoned = bool(select.select([sys.stdin], [], [], pause)[0])
        if is_abandoned or time.monotonic() > deadline:
            return not waiting.cancel()
    return True


def _send(**line: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
