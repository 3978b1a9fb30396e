"""A limit on a whole HTTP exchange: timeouts of sockets begin anew with every byte that drips in.

Standard library, for alerting and exporters alike.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


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


class WatchedTlsConnection(WatchedConnection, http.client.HTTPSConnection):
    """The same with TLS."""
