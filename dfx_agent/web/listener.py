"""The address to serve on, bound before anything else: a port in use becomes one clear line.

Nothing of the web framework: ``attach`` is in the job before that is imported.
"""

from __future__ import annotations

import errno
import socket

from dfx_agent.base.errors import ListenError, UsageError
from dfx_agent.base.loopback import is_loopback

LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104  compared with, never a default


def parse_listen(text: str) -> tuple[str, int]:
    """Split "host:port", "[v6]:port", ":port" or "port"; without a host it is loopback.

    Raises UsageError naming the text when it is none of these.
    """
    host, colon, port = text.strip().rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise UsageError(f"--listen {text!r}: no port in it; write HOST:PORT, for example :9931")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"--listen {text!r}: write an IPv6 address as [{host}]:{port}")
    if colon and any(letter.isspace() or letter in "/@[]" for letter in host):
        raise UsageError(f"--listen {text!r}: {host!r} is no host name; write HOST:PORT")
    return host or LOOPBACK, int(port)


class Listener:
    """A TCP address, with TLS if there is a certificate; port 0 selects any free port."""

    def __init__(
        self, host: str, port: int, tls_cert: str | None = None, tls_key: str | None = None
    ) -> None:
        self.host = host
        self.tls = (tls_cert, tls_key)
        self._port = port
        self._socket: socket.socket | None = None

    @property
    def url(self) -> str:
        """URL for browsers, with the real port once bound."""
        return self._url_of(socket.gethostname() if self.host in ALL_ADDRESSES else self.host)

    @property
    def local_url(self) -> str:
        """URL for this machine, once bound: loopback if it listens on all addresses."""
        local = dict(zip(ALL_ADDRESSES, (LOOPBACK, "::1"), strict=True))
        return self._url_of(local.get(self._address(), self.host))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it, once bound."""
        return is_loopback(self._address())

    def bind(self) -> socket.socket:
        """The socket, bound and listening; the same one when asked again.

        Raises ListenError when the address or the TLS files cannot be used.
        """
        if self._socket is None:
            _check_tls(*self.tls)
            self._socket = _bind(self.host, self._port)
            self._port = self._socket.getsockname()[1]
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _url_of(self, host: str) -> str:
        scheme = "https" if self.tls[0] else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"

    def _address(self) -> str:
        address: str = self.bind().getsockname()[0]
        return address


def _check_tls(cert: str | None, key: str | None) -> None:
    if cert is None:
        return
    import ssl  # noqa: PLC0415 (attach is in the job before what it does not need is loaded)

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise ListenError(
            f"cannot use the TLS files {cert} and {key}: {error.strerror or error}; "
            "give a PEM certificate and its unencrypted key"
        ) from error


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
    """Which process listens on the port, as far as this user may know."""
    import psutil  # noqa: PLC0415 (only for a failure)

    try:
        for connection in psutil.net_connections("tcp"):
            is_it = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
            if is_it and connection.pid:
                name = psutil.Process(connection.pid).name()
                return f"the port is in use by {name} (pid {connection.pid})"
    except (OSError, psutil.Error):
        pass
    return "the port is in use"
