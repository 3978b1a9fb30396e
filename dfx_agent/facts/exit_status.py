"""How a process ended: its exit code, or the signal that killed it."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import NamedTuple

_REQUESTS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_CODES_OF_REQUESTS = {128 + number for number in _REQUESTS}  # of shells and launchers


class ExitStatus(NamedTuple):
    """Either an exit code or the signal that killed the process."""

    code: int | None
    """0 to 255; None if a signal killed the process."""
    signal: int | None

    @classmethod
    def from_wait_status(cls, wait_status: int) -> ExitStatus:
        """Convert the status of wait(2)."""
        number = wait_status & 0x7F
        return cls(None, number) if number else cls(wait_status >> 8 & 0xFF, None)

    @property
    def is_success(self) -> bool:
        return self.code == 0

    @property
    def was_asked_for(self) -> bool:
        """Whether a launcher, a scheduler or a person asked the process to end."""
        return self.signal in _REQUESTS or self.code in _CODES_OF_REQUESTS

    def __str__(self) -> str:
        if self.signal is None:
            return f"ended with exit code {self.code}"
        with suppress(ValueError):
            return f"killed by signal {self.signal} ({signal.Signals(self.signal).name})"
        return f"killed by signal {self.signal}"
