"""A limit on a whole HTTP exchange: timeouts of sockets begin anew with every byte that drips in.

For alerting, which asks with httpx, and the push of OpenTelemetry, which asks with requests.
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
    """The one of this thread."""

    watched: _Watched | None = None


class _Watched:
    def __init__(self) -> None:
        self.socket: Any = None

    def cut(self) -> None:
        """Whoever waits for the socket sees its end."""
        with suppress(OSError, AttributeError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


_exchange = _Exchange()


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """After ``seconds`` the answer that this thread waits for, or reads, ends as if cut off."""
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
    """Its answers keep to the ``deadline`` of the thread that waits for them."""

    def getresponse(self, *args: Any, **known: Any) -> Any:
        if _exchange.watched is not None:
            _exchange.watched.socket = self.sock
        return super().getresponse(*args, **known)


def watched_stream(event: str, info: dict[str, Any]) -> None:
    """The same for httpx, as the ``trace`` extension of a request: it tells of each new socket."""
    if _exchange.watched is not None and event.endswith(_CONNECTED):
        _exchange.watched.socket = info["return_value"].get_extra_info("socket")
