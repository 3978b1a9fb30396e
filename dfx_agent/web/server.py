"""The HTTP server in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dfx_agent.errors import ListenError
from dfx_agent.web.connections import BoundedProtocol
from dfx_agent.web.listener import LOOPBACK, Listener

STOP_TIMEOUT_SECONDS = 2.0


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
        """Where a browser finds the page, with the real port once started."""
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
