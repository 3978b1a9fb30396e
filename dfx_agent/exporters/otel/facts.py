"""Facts as OTLP logs: one record per document, in OpenTelemetry's own queue.

Attributes name the sender of a document, so that a relay can route it without reading it. The trace
id is derived from the run, so the Collector's load balancer sends all of a run to one hub.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import requests
from certifi import where
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    set_span_in_context,
)

from dfx_agent.base.text import plain
from dfx_agent.exporters.otel.link import HubLink
from dfx_agent.exporters.otel.session import SCOPE, BoundedSession, resource_of

try:  # until opentelemetry-sdk 1.38
    from opentelemetry.sdk._logs import LogRecord as OldRecord  # type: ignore[attr-defined]
except ImportError:
    OldRecord = None

# for one exchange with all of its retries: a hub that returns is found within this time
_EXCHANGE_SECONDS = 5.0
_MAX_QUEUE, _AT_ONCE = 256, 16
_FLUSH_MS = 20_000
# the library flushes when it is asked to, and after this time
_SCHEDULE_MS = 3600_000.0
# the link reports failed tries once, so the library's own messages are suppressed
_LIBRARIES = ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal")

Attributes = Mapping[str, str | int | bool]


def open_sender(
    url: str, link: HubLink, *, instance: str, version: str, headers: Mapping[str, str],
    ca_file: str | None,
) -> FactsSender:  # fmt: skip
    return FactsSender(url, link, instance, version, headers, ca_file)


class FactsSender:
    """``add`` documents, then ``flush``; rejected documents count as lost in ``link``."""

    def __init__(
        self,
        url: str,
        link: HubLink,
        instance: str,
        version: str,
        headers: Mapping[str, str],
        ca_file: str | None,
    ) -> None:
        for name in _LIBRARIES:
            logging.getLogger(name).propagate = False
            logging.getLogger(name).addHandler(logging.NullHandler())
        self._resource = resource_of(instance, version)
        self._processor = BatchLogRecordProcessor(
            _Exporter(
                link,
                endpoint=url,
                # the job's OTEL_* variables and certificates are not used for the hub
                certificate_file=ca_file or where(),
                headers=dict(headers),
                timeout=_EXCHANGE_SECONDS,  # type: ignore[arg-type,unused-ignore]  # int once
                compression=Compression.Gzip,
                session=_Session(link),
            ),
            schedule_delay_millis=_SCHEDULE_MS,
            max_export_batch_size=_AT_ONCE,
            max_queue_size=_MAX_QUEUE,
        )
        provider = LoggerProvider(resource=self._resource, shutdown_on_exit=False)
        provider.add_log_record_processor(self._processor)
        self._logger = provider.get_logger(SCOPE, version)
        self._link, self._num_waiting = link, 0

    def add(self, run: str, document: bytes, attributes: Attributes) -> None:
        """Add a document to the queue; it is lost if the queue is full."""
        if self._num_waiting >= _MAX_QUEUE:
            self._link.count_lost(1)
            return
        self._num_waiting += 1
        self._logger.emit(_record(run, document, attributes, self._resource))

    def flush(self) -> None:
        """Send all queued documents; returns when they were accepted or dropped."""
        self._processor.force_flush(_FLUSH_MS)
        self._num_waiting = 0

    def shutdown(self) -> None:
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _record(run: str, document: bytes, attributes: Attributes, resource: Any) -> Any:
    record: dict[str, Any] = {
        "timestamp": time.time_ns(),
        "observed_timestamp": time.time_ns(),
        "severity_number": SeverityNumber.INFO,
        "body": document.decode(),
        "attributes": {k: plain(v) if isinstance(v, str) else v for k, v in attributes.items()},
    }
    trace_id = int.from_bytes(blake2b(plain(run).encode(), digest_size=16).digest(), "big") or 1
    if OldRecord is not None:
        flags = TraceFlags.get_default()
        return OldRecord(
            **record, resource=resource, trace_id=trace_id, span_id=1, trace_flags=flags
        )
    span = NonRecordingSpan(SpanContext(trace_id, 1, is_remote=False))
    return LogRecord(**record, context=set_span_in_context(span))


class _Exporter(OTLPLogExporter):
    """The library's exporter, which also counts the outcome of each batch."""

    def __init__(self, link: HubLink, **options: Any) -> None:
        super().__init__(**options)
        self._link = link

    def export(self, batch: Sequence[Any]) -> Any:
        """Does not raise FAILURE: no caller would see it."""
        try:
            result = super().export(batch)
        except BaseException:
            self._link.count_lost(len(batch))
            raise
        is_taken = result.name == "SUCCESS"
        (self._link.count_sent if is_taken else self._link.count_lost)(len(batch))
        return result


class _Session(BoundedSession):
    """Passes the hub's answers to the link; proxies of the environment are not used."""

    def __init__(self, link: HubLink) -> None:
        super().__init__()
        self.trust_env = False
        self._link = link

    def send(self, request: Any, **options: Any) -> requests.Response:
        try:
            response = super().send(request, **options)
        except Exception as error:
            self._link.see_no_answer(_innermost(error))
            raise
        body = response.content or b""
        reason = _refusal(response.status_code, body)
        self._link.see_answer(response.status_code, response.headers, reason)
        return response


def _refusal(status: int, body: bytes) -> str:
    """The receiver's message in the protocol's own field; "" if it accepted everything."""
    try:
        if status < 300:
            partial = ExportLogsServiceResponse.FromString(body).partial_success
            text = partial.error_message if partial.rejected_log_records else ""
        else:
            text = Status.FromString(body).message
    except DecodeError:
        text = ""
    return plain(" ".join(text.split()))[:300]


def _innermost(error: BaseException) -> str:
    """The operating system's message, without the text that libraries wrap around it."""
    found, text = error, ""
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, OSError) and found.strerror:
            text = found.strerror
        reason = getattr(found, "reason", None) or (found.args[0] if found.args else None)
        following = reason if isinstance(reason, BaseException) else None
        found = following or found.__cause__ or found.__context__  # type: ignore[assignment]
    return plain(text or type(error).__name__)
