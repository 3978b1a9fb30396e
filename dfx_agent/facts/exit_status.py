"""How a process ended: its exit code, or the signal that killed it."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import NamedTuple

_CAN_BE_ASKED_FOR = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


_INTERRUPTED = {128 + number for number in _CAN_BE_ASKED_FOR}  # as shells and launchers say it


class ExitStatus(NamedTuple):
    """One of both is told: the exit code, 0 to 255, or the signal that killed the process."""

    code: int | None
    signal: int | None

    @classmethod
    def of(cls, wait_status: int) -> ExitStatus:
        """From the status that wait(2) would give."""
        number = wait_status & 0x7F
        return cls(None, number) if number else cls(wait_status >> 8 & 0xFF, None)

    @property
    def is_success(self) -> bool:
        return self.code == 0

    @property
    def was_asked_for(self) -> bool:
        """Whether somebody told it to end: a launcher, a scheduler, a person."""
        return self.signal in _CAN_BE_ASKED_FOR or self.code in _INTERRUPTED

    def __str__(self) -> str:
        if self.signal is None:
            return f"ended with exit code {self.code}"
        with suppress(ValueError):
            return f"killed by signal {self.signal} ({signal.Signals(self.signal).name})"
        return f"killed by signal {self.signal}"
