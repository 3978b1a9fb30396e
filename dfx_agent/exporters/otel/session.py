"""What all pushes share: the resource, and an HTTP client that limits answers in size and time.

The client follows no redirect. The library reads whatever a receiver sends: one that never ended
its answer took the agent from 72 to 577 MiB.
"""

from __future__ import annotations

import socket
from typing import Any

import requests
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dfx_agent.base.deadline import WatchedConnection, deadline
from dfx_agent.base.loopback import is_loopback

SCOPE = "dfx_agent"
# job name in deploy/prometheus.yml: receivers build ``job`` and ``instance`` from name and id
_SERVICE = "dfx"


def resource_of(instance: str, version: str) -> Resource:
    """``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` take precedence."""
    ours = {
        "service.name": _SERVICE,
        "service.instance.id": _unique(instance),
        "service.version": version,
        "host.name": socket.gethostname(),
    }
    return Resource(ours).merge(OTELResourceDetector().detect())


def _unique(instance: str) -> str:
    """Host and port that are unique between machines: each machine has a 127.0.0.1:9931."""
    host, _, port = instance.rpartition(":")
    return f"{socket.gethostname()}:{port}" if is_loopback(host.strip("[]")) else instance


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
