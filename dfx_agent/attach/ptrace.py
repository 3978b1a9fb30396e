"""ptrace(2) for one thread, through ctypes. OSError contains the kernel's errno.

Linux detaches and resumes every traced thread when the tracer exits, so a process that uses this
file must be short-lived.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from dfx_agent.attach import refusals

_CONT, _DETACH = 7, 17
_GETREGSET, _SETREGSET, _SEIZE, _INTERRUPT = 0x4204, 0x4205, 0x4206, 0x4207
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_EVENT_STOP = 128
_WALL = 0x40000000
_MASK_SIZE = 8
_MAX_REGISTERS = 16384  # bytes; AMX state needs 11,008

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def is_permitted() -> bool:
    """Whether seccomp lets this process call ptrace at all; touches no other process.

    A filter that kills instead of refusing kills the caller.
    """
    try:
        _request(_DETACH, os.getpid())
    except ProcessLookupError:  # the kernel's answer for a thread that is not traced
        return True
    except OSError:
        return False
    return True


def stop(thread_id: int, seconds: float) -> None:
    """Seize and stop a thread within ``seconds``; signals that arrive meanwhile are passed on.

    Raises AttachError if it does not stop, has ended, or is stopped by job control.
    """
    # The kernel reports stops by this signal. If blocked, it can be awaited with a time limit.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    _request(_SEIZE, thread_id)
    _request(_INTERRUPT, thread_id)
    deadline = time.monotonic() + seconds
    while True:
        changed, status = os.waitpid(thread_id, _WALL | os.WNOHANG)
        if not changed:
            left = deadline - time.monotonic()
            if left <= 0:
                raise refusals.did_not_stop(thread_id, seconds)
            signal.sigtimedwait({signal.SIGCHLD}, left)
            continue
        if not os.WIFSTOPPED(status):
            raise ProcessLookupError
        if status >> 16 != _EVENT_STOP:
            _request(_CONT, thread_id, 0, os.WSTOPSIG(status))
            continue
        if os.WSTOPSIG(status) != signal.SIGTRAP:
            detach(thread_id)
            raise refusals.stopped(thread_id, "T")
        return


def detach(thread_id: int) -> None:
    _request(_DETACH, thread_id)


def registers(thread_id: int, kind: int) -> bytes:
    """One register set (NT_... of elf.h) of a stopped thread."""
    buffer = ctypes.create_string_buffer(_MAX_REGISTERS)
    vector = _IoVec(ctypes.addressof(buffer), len(buffer))
    _request(_GETREGSET, thread_id, kind, ctypes.addressof(vector))
    return buffer.raw[: vector.length]


def set_registers(thread_id: int, kind: int, data: bytes) -> None:
    buffer = ctypes.create_string_buffer(data, len(data))
    vector = _IoVec(ctypes.addressof(buffer), len(data))
    _request(_SETREGSET, thread_id, kind, ctypes.addressof(vector))


def signal_mask(thread_id: int) -> bytes:
    """Mask of the 64 signals of a stopped thread, in the kernel's format."""
    buffer = ctypes.create_string_buffer(_MASK_SIZE)
    _request(_GETSIGMASK, thread_id, _MASK_SIZE, ctypes.addressof(buffer))
    return buffer.raw


def set_signal_mask(thread_id: int, mask: bytes) -> None:
    buffer = ctypes.create_string_buffer(mask, _MASK_SIZE)
    _request(_SETSIGMASK, thread_id, _MASK_SIZE, ctypes.addressof(buffer))


def _request(request: int, thread_id: int, address: int = 0, data: int = 0) -> None:
    ctypes.set_errno(0)
    if _ptrace(request, thread_id, address, data) == -1 and (number := ctypes.get_errno()):
        raise OSError(number, os.strerror(number))
