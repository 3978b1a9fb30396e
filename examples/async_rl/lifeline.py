"""Ends a child of the pipeline without error output at SIGTERM or when its parent exits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, NoReturn

import dfx_agent.shim as dfx


def on_stop(stop: Callable[[], None]) -> None:
    """Call ``stop`` at SIGTERM. The end of the parent closes standard input and sends SIGTERM."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handle)
    threading.Thread(target=_watch_parent, name="lifeline", daemon=True).start()


def run(serving: Coroutine[Any, Any, None]) -> NoReturn:
    """Run an event loop until ``serving`` ends, then end this process."""
    code = 0
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(serving)
    except Exception:  # noqa: BLE001 (logged; the process then ends anyway)
        traceback.print_exc()
        code = 1
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit at once, without waiting for a paused engine thread or for gloo with a lost peer."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dfx.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _watch_parent() -> None:
    # not sys.stdin: this thread would still hold its lock when the process ends
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
