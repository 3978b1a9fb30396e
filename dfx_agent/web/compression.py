"""Compresses generated content; files are sent unchanged, with their ETag."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

MIN_BYTES = 1024
_COMPRESSED = ("/api/", "/metrics")


class Compression:
    """Starlette's, at zlib's fastest level, for who accepts it (it takes ``gzip;q=0`` as a yes).

    Events are not compressed, by Starlette from 0.46 on.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(app, minimum_size=MIN_BYTES, compresslevel=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_COMPRESSED):
            await self._app(scope, receive, send)
            return
        headers = MutableHeaders(raw=list(scope["headers"]))
        is_accepted = _accepts_gzip(headers.get("accept-encoding", ""))
        headers["accept-encoding"] = "gzip" if is_accepted else "identity"
        await self._compressing({**scope, "headers": headers.raw}, receive, send)


def _accepts_gzip(accept_encoding: str) -> bool:
    for part in accept_encoding.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False
