"""A time limit for a complete HTTP exchange. A socket timeout restarts with every byte received.

Alerting uses it with httpx, and the OpenTelemetry push uses it with requests.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_CONNECTED = (".connect_tcp.complete", ".start_tls.complete")


class _Exchange(threading.local):
    """The exchange of the current thread."""

    watched: _Watched | None = None


class _Watched:
    def __init__(self) -> None:
        self.socket: Any = None

    def cut(self) -> None:
        """Shut the socket down, so that a thread that waits for it sees its end."""
        with suppress(OSError, AttributeError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


_exchange = _Exchange()


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """After ``seconds``, end the answer that this thread waits for or reads, as if cut off."""
    watched = _exchange.watched = _Watched()
    timer = threading.Timer(seconds, watched.cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _exchange.watched = None


class WatchedConnection(http.client.HTTPConnection):
    """A connection that obeys the ``deadline`` of the thread that waits for its answer."""

    def getresponse(self, *args: Any, **kwargs: Any) -> Any:
        if _exchange.watched is not None:
            _exchange.watched.socket = self.sock
        return super().getresponse(*args, **kwargs)


def watched_stream(event: str, info: dict[str, Any]) -> None:
    """The same for httpx: the ``trace`` extension of a request, called for each new socket."""
    if _exchange.watched is not None and event.endswith(_CONNECTED):
        _exchange.watched.socket = info["return_value"].get_extra_info("socket")
