"""How a process that is not our child ended, as far as its kernel says.

A zombie's status stands in ``/proc/PID/stat``; Linux 6.15 and newer also tell it of a process that
has been reaped, to who held a pidfd of it (``PIDFD_GET_INFO``, include/uapi/linux/pidfd.h). Nothing
here waits, reaps, or shows in the job.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from contextlib import suppress

from dfx_agent.facts.exit_status import ExitStatus
from dfx_agent.host.stat import EXIT_STATUS, START_TICKS, STATE, stat_fields

_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, 11 ids, exit status: the first version's 64 bytes
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, struct pidfd_info)
_EXIT = 1 << 3


class ExitWatch:
    """Waits, without blocking, for one process to end. OSError when the process is gone.

    ``status`` is None as long as it runs, and for ever where the kernel does not tell.
    """

    _fd = -1

    def __init__(self, pid: int, start_ticks: int) -> None:
        self._pid, self._start_ticks = pid, start_ticks
        self._fd = os.pidfd_open(pid)
        self._exit = select.poll()
        self._exit.register(self._fd, select.POLLIN)
        self._status: ExitStatus | None = None

    def has_ended(self) -> bool:
        """2 us; a zombie has ended."""
        return self._fd < 0 or bool(self._exit.poll(0))

    @property
    def status(self) -> ExitStatus | None:
        if self._fd >= 0 and self.has_ended():
            self._status = zombie_status(self._pid, self._start_ticks) or reaped_status(self._fd)
            self.close()
        return self._status

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def zombie_status(pid: int, start_ticks: int) -> ExitStatus | None:
    """None when it runs, is gone, or belongs to somebody whose processes we may not look into."""
    fields = stat_fields(f"/proc/{pid}/stat")
    if len(fields) <= EXIT_STATUS or fields[STATE] not in {"Z", "X"}:
        return None
    if int(fields[START_TICKS]) != start_ticks or not _may_look(pid):
        return None
    return ExitStatus.of(int(fields[EXIT_STATUS]))


def reaped_status(pidfd: int) -> ExitStatus | None:
    """None while it is not reaped, and before Linux 6.15."""
    info = bytearray(_INFO.size)
    struct.pack_into("=Q", info, 0, _EXIT)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(info)
    return ExitStatus.of(status) if mask & _EXIT else None


def _may_look(pid: int) -> bool:
    """Whether the kernel tells us the status: to others it says 0 (PTRACE_MODE_READ_FSCREDS)."""
    with suppress(OSError):
        return os.geteuid() in {0, os.stat(f"/proc/{pid}").st_uid}
    return False
