"""The HTTP server in a thread of its own, with few connections at a time that ask for nothing.

uvicorn ends a connection that is silent after an answer, but waits for ever for a first request, or
for the rest of one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dfx_agent.base.errors import ListenError
from dfx_agent.web.listener import LOOPBACK, Listener

REQUEST_SECONDS = 10.0
MAX_CONNECTIONS = 256
STOP_TIMEOUT_SECONDS = 2.0


class BoundedProtocol(H11Protocol):
    """A request must be complete within ``REQUEST_SECONDS``.

    Above ``max_connections`` the connection that has been idle longest is closed, else the new one.
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
        """Whether no request, or only part of one, has arrived."""
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
        connections = [cast("Any", connection) for connection in self.connections]
        idle = [other for other in connections if other is not self and other._is_idle]  # noqa: SLF001
        oldest = min(idle, key=lambda other: other._silent_since, default=self)  # noqa: SLF001
        oldest.transport.abort()


class HubProtocol(BoundedProtocol):
    """The same for a hub, to which each node has one connection."""

    max_connections = 4096


class Server:
    """Serves ``app`` on ``listener`` until ``stop``.

    Bound to loopback it answers only to loopback names and ``extra_hosts``, so that no web page
    can reach it by pointing its own name at 127.0.0.1.
    """

    def __init__(
        self,
        app: FastAPI,
        listener: Listener,
        extra_hosts: Collection[str] = (),
        protocol: type[BoundedProtocol] = BoundedProtocol,
    ) -> None:
        self._app = app
        self._protocol = protocol
        self._listener = listener
        self._extra_hosts = extra_hosts
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """URL for browsers, with the real port once started."""
        return self._listener.url

    def start(self) -> None:
        """Bind and serve in a daemon thread.

        Raises ListenError when the address or the TLS files cannot be used.
        """
        bound = self._listener.bind()
        names = {"localhost", LOOPBACK, "::1", self._listener.host, *self._extra_hosts}
        app = HostCheck(self._app, names) if self._listener.is_loopback else self._app
        self._server = uvicorn.Server(self._config(app))
        self._thread = threading.Thread(
            target=self._server.run, args=([bound],), name="dfx-web", daemon=True
        )
        self._thread.start()
        self._wait_until_started()

    def stop(self) -> None:
        """End open streams, finish running requests, close the port; at most about 2 s."""
        if self._server is None or self._thread is None:
            return
        self._app.state.stream.close()
        self._server.should_exit = True
        self._thread.join(STOP_TIMEOUT_SECONDS)
        self._listener.close()

    def _config(self, app: ASGIApp) -> uvicorn.Config:
        cert, key = self._listener.tls
        return uvicorn.Config(
            app,
            loop="asyncio",
            http=self._protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who asks is who is connected, not who a header names
            timeout_graceful_shutdown=1,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )

    def _wait_until_started(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        while not self._server.started:  # however long it takes: the host may be loaded
            if not self._thread.is_alive():
                raise ListenError(
                    f"the web server on {self.url} did not start; its own output has the reason, "
                    "try another address with --listen"
                )
            time.sleep(0.005)


class HostCheck:
    """Refuses requests whose Host header is none of ``names`` (DNS rebinding)."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            if _host_name(host) not in self._names:
                detail = f"not served under the name {host!r}; use http://localhost instead"
                await JSONResponse({"detail": detail}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _host_name(host_header: str) -> str:
    """The name in lower case, without port and brackets: "[::1]:9931" is "::1"."""
    name = host_header.lower().rstrip()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]
