"""The HTTP server in a thread of its own: binds first, so that a taken port is one clear line."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from collections.abc import Collection

import psutil
import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dfx_agent.errors import ListenError, UsageError

LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104  compared with, never a default
START_TIMEOUT_SECONDS = 10.0
STOP_TIMEOUT_SECONDS = 2.0


def parse_listen(text: str) -> tuple[str, int]:
    """Split "host:port", "[v6]:port", ":port" or "port"; without a host it is loopback.

    Raises UsageError naming the text when it is none of these.
    """
    host, colon, port = text.strip().rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise UsageError(f"--listen {text!r}: no port in it; write HOST:PORT, for example :9931")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"--listen {text!r}: write an IPv6 address as [{host}]:{port}")
    if colon and any(letter.isspace() or letter in "/@[]" for letter in host):
        raise UsageError(f"--listen {text!r}: {host!r} is no host name; write HOST:PORT")
    return host or LOOPBACK, int(port)


class Server:
    """Serves ``app`` on (host, port) until ``stop``; port 0 takes any free port.

    Bound to loopback it answers only to loopback names and ``extra_hosts``, so that no web page
    can reach it by pointing its own name at 127.0.0.1.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        extra_hosts: Collection[str] = (),
    ) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._tls = (tls_cert, tls_key)
        self._extra_hosts = extra_hosts
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where a browser finds the page, with the real port once started."""
        scheme = "https" if self._tls[0] else "http"
        host = socket.gethostname() if self._host in ALL_ADDRESSES else self._host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"

    def start(self) -> None:
        """Bind and serve in a daemon thread.

        Raises ListenError when the address or the TLS files cannot be used.
        """
        self._socket = _bind(self._host, self._port)
        self._port = self._socket.getsockname()[1]
        is_loopback = _is_loopback(self._socket.getsockname()[0])
        names = {"localhost", LOOPBACK, "::1", self._host, *self._extra_hosts}
        app = HostCheck(self._app, names) if is_loopback else self._app
        try:
            self._server = uvicorn.Server(self._config(app))
        except ListenError:
            self._socket.close()
            raise
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="dfx-web", daemon=True
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
        if self._socket is not None:
            self._socket.close()

    def _config(self, app: ASGIApp) -> uvicorn.Config:
        cert, key = self._tls
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise ListenError(
                f"cannot use the TLS files {cert} and {key}: {error.strerror or error}; "
                "give a PEM certificate and its unencrypted key"
            ) from error
        return config

    def _wait_until_started(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
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


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ListenError(
            f"cannot listen on {host}:{port}: no such host name ({error.strerror}); "
            f"give an address of this machine with --listen, for example {LOOPBACK}:{port}"
        ) from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ListenError(_bind_failure(host, port, error)) from error
    return listener


def _bind_failure(host: str, port: int, error: OSError) -> str:
    what = f"cannot listen on {host}:{port}: "
    if error.errno == errno.EADDRINUSE:
        return what + f"{_holder(port)}; choose another with --listen HOST:PORT, port 0 for any"
    if error.errno == errno.EADDRNOTAVAIL:
        return what + f"not an address of this machine; use --listen {LOOPBACK}:{port}"
    if error.errno == errno.EACCES:
        return what + "ports below 1024 are reserved; use a higher one, for example --listen :9931"
    return what + f"{error.strerror}; choose another address with --listen"


def _holder(port: int) -> str:
    """Who listens on the port, as far as this user may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            is_it = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
            if is_it and connection.pid:
                name = psutil.Process(connection.pid).name()
                return f"the port is in use by {name} (pid {connection.pid})"
    except (OSError, psutil.Error):
        pass
    return "the port is in use"
