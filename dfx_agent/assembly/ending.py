"""Waiting for the signals that end a verb, which it has blocked."""

from __future__ import annotations

import signal
from collections.abc import Set as AbstractSet


def told_to_end(signals: AbstractSet[signal.Signals], seconds: float) -> bool:
    """Sleep for ``seconds``; True as soon as one of ``signals`` comes.

    CPython's sigtimedwait returns a record of nothing where another signal (SIGCONT after a stop)
    interrupts it past its time: only a signal that was waited for counts. Seen with 3.11.7.
    """
    info = signal.sigtimedwait(signals, seconds)
    return info is not None and info.si_signo in signals
