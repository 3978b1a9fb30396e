"""Exit status of a process that is not our child, if the kernel reports it.

``/proc/PID/stat`` has the status of a zombie. Linux 6.15 and newer also report it after the process
was reaped, through a pidfd (``PIDFD_GET_INFO``, include/uapi/linux/pidfd.h). Nothing here waits for
a process, reaps it, or is visible in the job.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from contextlib import suppress

from dfx_agent.facts.rank import ExitStatus
from dfx_agent.node.host.processes import EXIT_STATUS, START_TICKS, STATE, stat_fields

_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, 11 ids, exit status: the first version's 64 bytes
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, struct pidfd_info)
_EXIT = 1 << 3
_FULL_CHECK_EVERY = 16


class ExitWatch:
    """Checks without blocking whether one process has ended. OSError if it is already gone.

    With ``holds_open`` a pidfd stays open. Without, the process is looked up for each check, and
    the status of a reaped process is never known.
    """

    _fd = -1

    def __init__(self, pid: int, start_ticks: int, *, holds_open: bool = True) -> None:
        self._pid, self._start_ticks = pid, start_ticks
        self._exit = select.poll()
        self._is_over = False
        self._num_checks = 0
        self._status: ExitStatus | None = None
        fd = os.pidfd_open(pid)
        if holds_open:
            self._fd = fd
            self._exit.register(fd, select.POLLIN)
        else:
            os.close(fd)

    def has_ended(self) -> bool:
        """Whether it has ended; a zombie has. Takes 2 µs, or 10 µs without a descriptor."""
        if self._fd >= 0:
            return bool(self._exit.poll(0))
        self._is_over = self._is_over or self._is_gone()
        return self._is_over

    @property
    def status(self) -> ExitStatus | None:
        """None while it runs, and if the kernel does not report the status."""
        if self._status is None and self.has_ended():
            reaped = None if self._fd < 0 else reaped_status(self._fd)
            self._status = zombie_status(self._pid, self._start_ticks) or reaped
            self.close()
        return self._status

    def _is_gone(self) -> bool:
        """Look the process up; every 16th time also check that the pid was not reused."""
        self._num_checks += 1
        try:
            fd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            return True
        except OSError:  # no descriptor is free: assume no change
            return False
        exit_ = select.poll()
        exit_.register(fd, select.POLLIN)
        has_ended = bool(exit_.poll(0))
        os.close(fd)
        return has_ended or (self._num_checks % _FULL_CHECK_EVERY == 0 and self._is_another())

    def _is_another(self) -> bool:
        fields = stat_fields(f"/proc/{self._pid}/stat")
        return len(fields) <= START_TICKS or int(fields[START_TICKS]) != self._start_ticks

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._is_over = True

    __del__ = close


def zombie_status(pid: int, start_ticks: int) -> ExitStatus | None:
    """None while it runs, after it is gone, and if this user may not read its status."""
    fields = stat_fields(f"/proc/{pid}/stat")
    if len(fields) <= EXIT_STATUS or fields[STATE] not in {"Z", "X"}:
        return None
    if int(fields[START_TICKS]) != start_ticks or not _may_look(pid):
        return None
    return ExitStatus.from_wait_status(int(fields[EXIT_STATUS]))


def reaped_status(pidfd: int) -> ExitStatus | None:
    """None until it was reaped, and before Linux 6.15."""
    info = bytearray(_INFO.size)
    struct.pack_into("=Q", info, 0, _EXIT)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(info)
    return ExitStatus.from_wait_status(status) if mask & _EXIT else None


def _may_look(pid: int) -> bool:
    """Whether the kernel shows us the status; others read 0 (PTRACE_MODE_READ_FSCREDS)."""
    with suppress(OSError):
        return os.geteuid() in {0, os.stat(f"/proc/{pid}").st_uid}
    return False
