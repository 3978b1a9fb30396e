"""HTTP client of the push: limits answers in size and time, and follows no redirect.

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
    """Applies the deadline to plain connections."""


class _TlsConnection(WatchedConnection, HTTPSConnection):
    """Applies the deadline to TLS connections."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}


class BoundedSession(requests.Session):
    """Reads at most ``MAX_ANSWER_BYTES`` of an answer, for at most ``EXCHANGE_SECONDS``."""

    def __init__(self) -> None:
        super().__init__()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter())

    def send(self, request: Any, **options: Any) -> requests.Response:
        """Like requests; a redirect is returned like any other answer."""
        options |= {"stream": True, "allow_redirects": False}
        with deadline(EXCHANGE_SECONDS):
            response = super().send(request, **options)
            data = response.raw.read(MAX_ANSWER_BYTES, decode_content=True)
        response.close()  # the rest of a longer answer is not read
        response._content = data  # noqa: SLF001 (what requests itself sets when it reads)
        response._content_consumed = True  # noqa: SLF001
        return response
