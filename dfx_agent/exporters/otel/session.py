"""The HTTP client of the push: an answer has an end, in bytes and in time, and leads nowhere else.

The library reads whatever a receiver sends: one that never ended its answer took the agent from 72
to 577 MiB.
"""

from __future__ import annotations

from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dfx_agent.base.deadline import WatchedConnection, deadline

EXCHANGE_SECONDS = 20.0
MAX_ANSWER_BYTES = 64 << 10


class _Connection(WatchedConnection, HTTPConnection):
    """Keeps to the deadline."""


class _TlsConnection(WatchedConnection, HTTPSConnection):
    """Keeps to it too."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **known: Any) -> None:
        super().init_poolmanager(*args, **known)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}


class BoundedSession(requests.Session):
    """Of an answer it reads ``MAX_ANSWER_BYTES``, for ``EXCHANGE_SECONDS`` at most."""

    def __init__(self) -> None:
        super().__init__()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter())

    def send(self, request: Any, **known: Any) -> requests.Response:
        """As of requests; a redirect is an answer like others."""
        known |= {"stream": True, "allow_redirects": False}
        with deadline(EXCHANGE_SECONDS):
            response = super().send(request, **known)
            data = response.raw.read(MAX_ANSWER_BYTES, decode_content=True)
        response.close()  # a longer one is not read to its end
        response._content = data  # noqa: SLF001 (what requests itself sets when it reads)
        response._content_consumed = True  # noqa: SLF001
        return response
