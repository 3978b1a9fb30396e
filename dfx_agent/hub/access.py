"""Access control: by token, or by the user of a local process.

Changes always need the token, as a header or as the cookie that the page received. Processes of the
users in ``uids`` may read over loopback without it. If the user cannot be determined, access is
refused.

The owner of the client's end of a local connection is found in Linux's ``/proc/net/tcp`` and
``tcp6``.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from anyio.to_thread import run_sync
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dfx_agent.base.text import plain
from dfx_agent.facts import envelope
from dfx_agent.snapshot import SegmentProblem

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_ESTABLISHED = "01"
_STATE, _UID, _INODE = 3, 7, 9

Address = tuple[str, int]
# a probe cannot show a token, and these say nothing about the runs
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        # plotly writes its own style rules; script stays limited to our files.
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'self'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
# paths to which local processes of known users may post: facts of a node and spans of a job, which
# change no setting; a browser asks before it sends their content type, and is refused
_POST_PATHS = frozenset({envelope.LOGS_PATH, envelope.TRACES_PATH})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# headers of proxies: behind a proxy the local user is not the real client
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-real-ip")


@dataclass(frozen=True)
class Access:
    """Who may read and change. ``token``: allows everything; None: nothing can be changed.

    ``token_file`` is named in messages. ``uids``: users whose local processes may read without the
    token; ``is_open_to_local_users``: all users. ``see_stranger`` is called with address and name
    of a sender that has no valid token.
    """

    token: str | None
    token_file: str = ""
    uids: frozenset[int] = frozenset()
    is_open_to_local_users: bool = False
    see_stranger: Callable[[str, str], None] | None = None


class Guard:
    """Applies ``access``, if there is one, and sets the security headers."""

    def __init__(self, app: ASGIApp, access: Access | None) -> None:
        self._app = app
        self._access = access
        self._token = access.token.encode() if access and access.token else None
        # The cookie is derived, so that a stolen one is not the token of every other agent.
        self._cookie = hashlib.sha256(b"dfx-agent cookie" + (self._token or b"")).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        by_query = self._is_token(connection.query_params.get("token", "").encode())
        may_pass = by_query or await self._may_pass(connection)
        # the page of somebody who may read gets what its buttons need
        is_page = scope["path"] == "/" and may_pass and self._may_have_cookie(connection)
        cookie = self._set_cookie(connection) if by_query or is_page else None

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if cookie:
                    headers.append("Set-Cookie", cookie)
            await send(message)

        await (self._app if may_pass else self._refuse)(scope, receive, send_guarded)

    async def _may_pass(self, connection: HTTPConnection) -> bool:
        # of the scope: a URL is put together with the Host header, which may hold a path
        if self._access is None or connection.scope["path"] in OPEN_PATHS:
            return True
        if self._shows_token(connection):
            return True
        if not _is_direct(connection):
            return False
        if connection.scope["method"] in _READING:
            return self._access.is_open_to_local_users or await self._is_of_known_user(connection)
        may_post = connection.scope["path"] in _POST_PATHS
        return may_post and await self._is_of_known_user(connection)

    def _shows_token(self, connection: HTTPConnection) -> bool:
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given.strip().encode("latin-1")):
            return True
        cookie = connection.cookies.get(_cookie_name(connection), "")
        is_cookie = hmac.compare_digest(cookie.encode(), self._cookie.encode())
        return self._token is not None and is_cookie

    async def _is_of_known_user(self, connection: HTTPConnection) -> bool:
        assert self._access is not None
        client, server = connection.scope.get("client"), connection.scope.get("server")
        if not self._access.uids or not client or not server:
            return False
        # a table of the kernel, which may be long: not in the thread that serves everybody
        return await run_sync(uid_of, client, server) in self._access.uids

    def _may_have_cookie(self, connection: HTTPConnection) -> bool:
        """False if all local users may read but not change."""
        if self._access is None or self._token is None or self._access.is_open_to_local_users:
            return False
        return not self._shows_token(connection)

    def _is_token(self, given: bytes) -> bool:
        return self._token is not None and hmac.compare_digest(given, self._token)

    def _set_cookie(self, connection: HTTPConnection) -> str:
        secure = "; Secure" if connection.url.scheme == "https" else ""
        name = _cookie_name(connection)
        return f"{name}={self._cookie}; Path=/; HttpOnly; SameSite=Strict{secure}"

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _POST_PATHS and self._access is not None:
            _see_stranger(self._access, HTTPConnection(scope))
        detail = "token required: send 'Authorization: Bearer TOKEN', or open /?token=TOKEN once"
        if self._access is not None and self._access.token_file:
            detail += f"; it stands in {self._access.token_file}"
        if scope["method"] in _READING and is_loopback(scope.get("client")):
            detail += "; open_to_local_users lets all users of this machine read"
        response = JSONResponse({"detail": detail}, 401, {"WWW-Authenticate": "Bearer"})
        await response(scope, receive, send)


def _see_stranger(access: Access, connection: HTTPConnection) -> None:
    if access.see_stranger is not None and connection.client is not None:
        named = plain(connection.headers.get(envelope.NODE_HEADER, ""))[:256]
        access.see_stranger(connection.client.host, named)


def _is_direct(connection: HTTPConnection) -> bool:
    is_forwarded = any(name in connection.headers for name in _FORWARDED)
    return is_loopback(connection.scope.get("client")) and not is_forwarded


def _cookie_name(connection: HTTPConnection) -> str:
    # Browsers share cookies between ports, and people tunnel several agents to one localhost.
    return f"dfx_token_{connection.url.port or 0}"


def is_loopback(peer: Address | None) -> bool:
    ip = _ip(peer[0]) if peer else None
    return ip is not None and ip.is_loopback


def uid_of(client: Address, server: Address) -> int | None:
    """Owner of the client's end of a connection to ``server``; None if it cannot be determined.

    A socket that its process has closed belongs to nobody, and the kernel shows it as root's: only
    one that is established and has an inode counts.
    """
    needles = list(_rows_begin(client, server))
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as file:
                text = file.read()
        except (OSError, ValueError):
            continue
        for needle in needles:
            at = text.find(needle)
            fields = text[text.rfind("\n", 0, at) + 1 :].split(None, _INODE + 1) if at >= 0 else []
            if len(fields) > _INODE and fields[_STATE] == _ESTABLISHED and fields[_INODE] != "0":
                return int(fields[_UID])
    return None


def _rows_begin(client: Address, server: Address) -> Iterator[str]:
    """Both ends in the notation of the tables; an IPv4 address may appear as an IPv6 one."""
    near, far = _ip(client[0]), _ip(server[0])
    if near is None or far is None or near.version != far.version:
        return
    yield f" {_hex(near)}:{client[1]:04X} {_hex(far)}:{server[1]:04X} "
    if near.version == 4:
        mapped = [ipaddress.ip_address(f"::ffff:{ip}") for ip in (near, far)]
        yield f" {_hex(mapped[0])}:{client[1]:04X} {_hex(mapped[1])}:{server[1]:04X} "


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def _hex(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """As the kernel prints it: 32-bit words in this machine's byte order."""
    words = struct.unpack(f"={len(ip.packed) // 4}I", ip.packed)
    return "".join(f"{word:08X}" for word in words)


_MAX_ADDRESSES = 64
_OTHERS = "other addresses"


@dataclass(slots=True)
class _SenderCounts:
    num_refused: int = 0
    named: str = ""


class Strangers:
    """Senders whose requests to the hub had a wrong token or none. Thread-safe.

    A refused node is missing from its job, and its own messages are on another host. Requests are
    counted by address, because a sender may use any node's name.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _SenderCounts] = {}
        self._lock = threading.Lock()

    def see(self, address: str, named: str) -> None:
        """One more request was refused; ``named``: the name that its sender gives itself."""
        with self._lock:
            is_one_too_many = address not in self._counts and len(self._counts) >= _MAX_ADDRESSES
            key = _OTHERS if is_one_too_many else address
            counts = self._counts.setdefault(key, _SenderCounts())
            counts.num_refused, counts.named = counts.num_refused + 1, named or counts.named

    def problems(self) -> tuple[SegmentProblem, ...]:
        """One problem per address."""
        with self._lock:
            return tuple(
                SegmentProblem(address, "stranger", _text(address, counts))
                for address, counts in sorted(self._counts.items())
            )


def _text(address: str, counts: _SenderCounts) -> str:
    times = "once" if counts.num_refused == 1 else f"{counts.num_refused:,} times"
    named = f"; it calls itself {counts.named}" if counts.named else ""
    return (
        f"{address} was turned away {times}: a wrong token or none (401){named}; "
        "give it this hub's token with --join-token-file FILE"
    )
