"""A receiver of OTLP over HTTP that reads the protocol's own messages and keeps what they say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """``status`` is what it answers; only what is answered with 200 is kept."""

    def __init__(self) -> None:
        self.status = 200
        self.num_refused = 0
        self.pushes: list[ExportMetricsServiceRequest] = []
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.headers: dict[str, str] = {}
        self.lock = threading.Lock()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            metrics = ExportMetricsServiceRequest.FromString(body)
            self.pushes.append(metrics)
            self.resources += [_strings(r.resource) for r in metrics.resource_metrics]
        else:
            assert path == "/v1/traces", path
            traces = ExportTraceServiceRequest.FromString(body)
            self.resources += [_strings(r.resource) for r in traces.resource_spans]
            self.spans += [
                span
                for resource in traces.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    def metrics(self) -> dict[str, Any]:
        """Name -> metric, of the newest push."""
        (resource,) = self.pushes[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}


def attributes(of: Any) -> dict[str, Any]:
    """Of a point or a span."""
    values = {a.key: a.value for a in of.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


def _strings(resource: Any) -> dict[str, str]:
    return {a.key: a.value.string_value for a in resource.attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with receiver.lock:
                receiver.headers = {name.lower(): text for name, text in self.headers.items()}
                if receiver.status == 200:
                    receiver.take(self.path, body)
                else:
                    receiver.num_refused += 1
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not onto the tests' output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield receiver
        server.shutdown()
