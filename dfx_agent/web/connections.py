"""Connections that ask for nothing: few at a time, and none for long.

uvicorn ends a connection that is silent after an answer, but waits for ever for a first request, or
for the rest of one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
MAX_CONNECTIONS = 256


class BoundedProtocol(H11Protocol):
    """A request has to be whole in ``REQUEST_SECONDS``.

    Above ``max_connections`` the one that has asked for nothing longest goes, else the newest.
    """

    max_connections = MAX_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._silent_since = time.monotonic()
        self._limit: asyncio.TimerHandle | None = None
        self._expect_request()
        if len(self.connections) > self.max_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_idle and self._limit is None:
            self._expect_request()
        super().data_received(data)
        if not self._is_idle:
            self._stop_waiting()

    @property
    def _is_idle(self) -> bool:
        """Nothing is asked for, or not wholly."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_request(self) -> None:
        self._limit = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _give_up(self) -> None:
        self._limit = None
        if self._is_idle and not self.transport.is_closing():
            self.transport.close()

    def _make_room(self) -> None:
        open_now = [cast("Any", each) for each in self.connections]
        idle = [each for each in open_now if each is not self and each._is_idle]  # noqa: SLF001
        oldest = min(idle, key=lambda each: each._silent_since, default=self)  # noqa: SLF001
        oldest.transport.abort()


class HubProtocol(BoundedProtocol):
    """The same for a hub, to which each node keeps a connection."""

    max_connections = 4096
