"""The end of an agent that ends with its job: Prometheus may see that end before the agent goes.

Otherwise the alerts on vanished runs and agents could not distinguish an orderly end from a lost
node.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

Render = Callable[[str | None], tuple[bytes, str]]

# people and scripts ask for anything, scrapers name the version of the format
_SCRAPER_MARK = "version="
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_LOOK_SECONDS = 0.1
_MOST_NAMED = 4


class Scrapes:
    """When /metrics was scraped; times are monotonic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest = -math.inf
        self._gap_seconds = math.inf

    def watched(self, render: Render) -> Render:
        """``render``, and every scrape it answers is known here."""

        def answer(accept: str | None) -> tuple[bytes, str]:
            begin = time.monotonic()
            page = render(accept)
            if _SCRAPER_MARK in (accept or ""):
                self._note(begin)
            return page

        return answer

    def came_since(self, moment: float) -> bool:
        """Whether one began at ``moment`` or later, and was answered."""
        return self._latest >= moment

    def patience_seconds(self, limit_seconds: float) -> float:
        """Longest wait for the next scrape: two intervals; 0 if no server scrapes (any more)."""
        with self._lock:
            if time.monotonic() - self._latest > limit_seconds:
                return 0.0
            return min(limit_seconds, 2 * self._gap_seconds)

    def _note(self, begin: float) -> None:
        with self._lock:
            self._gap_seconds = begin - self._latest
            self._latest = begin


def wait_for_scrape(scrapes: Scrapes, limit_seconds: float, say: Callable[[str], None]) -> None:
    """Until a scrape that begins now or later was answered. Signals must be blocked; one ends it.

    Nobody waits longer than ``limit_seconds``, and not at all where nobody scrapes.
    """
    begin = time.monotonic()
    end = begin + scrapes.patience_seconds(limit_seconds)
    if end - begin >= 1:
        say(f"Prometheus may see the end: up to {end - begin:.0f} s (Ctrl-C: at once)")
    while time.monotonic() < end and not scrapes.came_since(begin):
        if wait_for_signal(_ENDING, _LOOK_SECONDS):
            return


def wait_for_nodes(
    present: Callable[[], Sequence[str]], limit_seconds: float, say: Callable[[str], None]
) -> None:
    """Until nobody is ``present`` any more, ``limit_seconds`` at most. Signals as above."""
    begin = time.monotonic()
    if (nodes := present()) and limit_seconds >= 1:
        wait = f"up to {limit_seconds:.0f} s (Ctrl-C: at once)"
        say(f"the hub waits for the last news of {', '.join(nodes[:_MOST_NAMED])}: {wait}")
    while time.monotonic() - begin < limit_seconds and present():
        if wait_for_signal(_ENDING, _LOOK_SECONDS):
            return


def wait_for_signal(signals: AbstractSet[signal.Signals], seconds: float) -> bool:
    """Sleep for ``seconds``; True as soon as one of ``signals`` comes.

    CPython's sigtimedwait returns an empty record if another signal (SIGCONT after a stop)
    interrupts it after its timeout: only a signal in ``signals`` counts. Seen with 3.11.7.
    """
    info = signal.sigtimedwait(signals, seconds)
    return info is not None and info.si_signo in signals
