"""Records uncaught exceptions: type, message and line in the job's own code.

``sys.excepthook`` and ``threading.excepthook`` are wrapped and call the previous hook with the same
arguments. Exceptions inside torchrun's ``record`` are raised again, so they arrive here too. The
wrappers run only when an exception has already left the job's code.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from typing import Any

from dfx_agent.shim import recorder
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.wire.failure import Failure
from dfx_agent.wire.layout import MAIN_FAILURE, THREAD_FAILURE

PATCHES = PatchSet("exceptions", is_optional=True)

_MAX_FRAMES, _MAX_SCANNED = 2000, 16 * 1024
_LIBRARY = os.path.dirname(os.__file__) + os.sep
# installed packages, and the guest itself from a checkout or an attach
_INSTALLED = re.compile(
    r"[\\/](site|dist)-packages[\\/]|^<(frozen|attached)|[\\/]dfx_agent[\\/](shim|wire)[\\/]"
)
# a traceback inside a message: of a DataLoader's worker, a remote task, a spawned rank
_TRACED = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
# matches "ValueError: x" and "zmq.error.Again", but not the line "ip: 10.0.0.1" that Ray adds
_RAISED = re.compile(r"^((?:[a-zA-Z_]\w*\.)+[A-Za-z_]\w*|[A-Z]\w*)(?:: (.*))?$")


def install() -> None:
    """Wrap both hooks, in a process that records."""
    PATCHES.install(_patch)


def note_in_flight() -> None:
    """Record the exception that ends a child of multiprocessing, which calls no excepthook."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    if error is not None and PATCHES.is_active:
        _note(type(error), error, error.__traceback__, MAIN_FAILURE)


def _patch(patches: PatchSet) -> None:
    if callable(sys.excepthook) and callable(threading.excepthook):
        patches.replace(sys, "excepthook", _noting)
        patches.replace(threading, "excepthook", _noting_thread)


def _noting(original: Any, switch: Switch) -> Any:
    def excepthook(kind: Any, value: Any, traceback: Any) -> Any:
        if switch.is_on:
            _note(kind, value, traceback, MAIN_FAILURE)
        return original(kind, value, traceback)

    return excepthook


def _noting_thread(original: Any, switch: Switch) -> Any:
    def excepthook(args: Any) -> Any:
        if switch.is_on and args.exc_type is not SystemExit:
            name = getattr(args.thread, "_name", "") or "?"
            _note(args.exc_type, args.exc_value, args.exc_traceback, THREAD_FAILURE, name)
        return original(args)

    return excepthook


def _note(kind: Any, value: Any, traceback: Any, slot: int, thread: str = "") -> None:
    """Record an exception. Never raises, because the job's own hook is called next."""
    try:
        writer = recorder.current
        if writer is not None and writer.pid == os.getpid():
            text = _text_of(value)
            where = _traced(text) or _place(traceback)
            raised = _raised(text) if _TRACED.search(text) else None
            named, message = raised or (getattr(kind, "__name__", "?"), text)
            line = " ".join(message[:2000].split())
            writer.note_failure(
                slot, Failure(time.monotonic_ns(), named, line, *where, str(thread))
            )
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _text_of(value: Any) -> str:
    """The end of the message, where the last line names the error. ``str`` runs the job's code."""
    try:
        return str(value)[-_MAX_SCANNED:]
    except BaseException:  # noqa: BLE001 (the traceback module prints the same text)
        return "<exception str() failed>"


def _place(traceback: Any) -> tuple[str, int, str]:
    """The innermost frame of the job's own code, else the innermost frame of all."""
    frames: list[tuple[str, int, str]] = []
    while traceback is not None and len(frames) < _MAX_FRAMES:
        code = traceback.tb_frame.f_code
        frames.append((code.co_filename, traceback.tb_lineno or 0, code.co_name))
        traceback = traceback.tb_next
    return _innermost(frames)


def _traced(text: str) -> tuple[str, int, str] | None:
    """The innermost frame of a traceback inside a message; None if there is none."""
    frames = [(file, int(line), name) for file, line, name in _TRACED.findall(text)]
    return _innermost(frames) if frames else None


def _innermost(frames: list[tuple[str, int, str]]) -> tuple[str, int, str]:
    own = [frame for frame in frames if _is_own(frame[0])]
    return (own or frames or [("", 0, "")])[-1]


def _is_own(file: str) -> bool:
    return not file.startswith(_LIBRARY) and not _INSTALLED.search(file)


def _raised(text: str) -> tuple[str, str] | None:
    """Type and message from the last line of a traceback; None if no line matches."""
    for line in reversed(text.splitlines()):
        if found := _RAISED.match(line.strip()):
            return found[1].rpartition(".")[2], found[2] or ""
    return None
