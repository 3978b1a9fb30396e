"""Returns memory that the agent itself has freed to the kernel.

glibc retains pages between blocks that are still in use: 6 MiB after the imports of a start, 7 MiB
after some minutes with engines. They are released a minute after the start and every ten minutes.
Another libc or malloc is not touched. This is never done in a job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

FIRST_SECONDS, EVERY_SECONDS = 60.0, 600.0


class OwnMemory:
    """One thread from ``start`` to ``stop``."""

    def __init__(self, first_seconds: float = FIRST_SECONDS) -> None:
        self._first_seconds = first_seconds
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="dfx-own-memory", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        give_back = _malloc_trim()
        seconds = self._first_seconds
        while give_back is not None and not self._over.wait(seconds):
            give_back(0)
            seconds = EVERY_SECONDS


def _malloc_trim() -> Callable[[int], int] | None:
    import ctypes

    with suppress(OSError, AttributeError):  # no glibc
        trim: Callable[[int], int] = ctypes.CDLL("libc.so.6").malloc_trim
        return trim
    return None
