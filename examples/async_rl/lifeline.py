"""A child of the pipeline: ends quietly when it is told to, and when whoever started it is gone."""

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
    """Call ``stop`` at SIGTERM, which also comes when standard input ends with our parent."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handle)
    threading.Thread(target=_watch_parent, name="lifeline", daemon=True).start()


def run(serving: Coroutine[Any, Any, None]) -> NoReturn:
    """Run an event loop until ``serving`` ends, and this process with it."""
    code = 0
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(serving)
    except Exception:  # noqa: BLE001 (told, and then the end all the same)
        traceback.print_exc()
        code = 1
    leave(code)


def leave(code: int) -> NoReturn:
    """End now: no engine thread that stands still, and no gloo with a peer gone, keeps us."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dfx.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _watch_parent() -> None:
    # the descriptor and not sys.stdin, whose lock a thread would hold at the end of the process
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
