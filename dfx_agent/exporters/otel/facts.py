"""Facts as OTLP logs: one record for each document, in OpenTelemetry's own queue.

A record says whose document it is in attributes, so that a relay can route by it without reading
it. Its trace id is made of the run: the Collector's load balancer sends all of a run to one hub.
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
from dfx_agent.exporters.otel.resource import SCOPE, resource_of
from dfx_agent.exporters.otel.session import BoundedSession

try:  # until opentelemetry-sdk 1.38
    from opentelemetry.sdk._logs import LogRecord as OldRecord  # type: ignore[attr-defined]
except ImportError:
    OldRecord = None

# of one exchange with all of its tries: a hub that is back is found as soon
_EXCHANGE_SECONDS = 5.0
_MAX_QUEUE, _AT_ONCE = 256, 16
_FLUSH_MS = 20_000
# it flushes when it is told to, and at this time besides
_SCHEDULE_MS = 3600_000.0
# what they say of each failed try is said by the link, once
_LIBRARIES = ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal")

Attributes = Mapping[str, str | int | bool]


def open_sender(
    url: str, link: HubLink, *, instance: str, version: str, headers: Mapping[str, str],
    ca_file: str | None,
) -> FactsSender:  # fmt: skip
    return FactsSender(url, link, instance, version, headers, ca_file)


class FactsSender:
    """``add`` documents, then ``flush``: what is not taken then is counted as lost by ``link``."""

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
                # of the job's OTEL_* nothing goes to the hub, and no certificate is taken from them
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
        """To the queue; one for which there is no room is lost."""
        if self._num_waiting >= _MAX_QUEUE:
            self._link.count_lost(1)
            return
        self._num_waiting += 1
        self._logger.emit(_record(run, document, attributes, self._resource))

    def flush(self) -> None:
        """Send what waits; returns when it was taken, or given up."""
        self._processor.force_flush(_FLUSH_MS)
        self._num_waiting = 0

    def shutdown(self) -> None:
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _record(run: str, document: bytes, attributes: Attributes, resource: Any) -> Any:
    known: dict[str, Any] = {
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
            **known, resource=resource, trace_id=trace_id, span_id=1, trace_flags=flags
        )
    span = NonRecordingSpan(SpanContext(trace_id, 1, is_remote=False))
    return LogRecord(**known, context=set_span_in_context(span))


class _Exporter(OTLPLogExporter):
    """The library's, and what becomes of each batch is counted."""

    def __init__(self, link: HubLink, **known: Any) -> None:
        super().__init__(**known)
        self._link = link

    def export(self, batch: Sequence[Any]) -> Any:
        """FAILURE is never raised: nobody but us would see it."""
        try:
            result = super().export(batch)
        except BaseException:
            self._link.count_lost(len(batch))
            raise
        is_taken = result.name == "SUCCESS"
        (self._link.count_sent if is_taken else self._link.count_lost)(len(batch))
        return result


class _Session(BoundedSession):
    """Tells the link how the hub answers; a proxy of the environment is not asked."""

    def __init__(self, link: HubLink) -> None:
        super().__init__()
        self.trust_env = False
        self._link = link

    def send(self, request: Any, **known: Any) -> requests.Response:
        try:
            response = super().send(request, **known)
        except Exception as error:
            self._link.see_no_answer(_innermost(error))
            raise
        body = response.content or b""
        reason = _refusal(response.status_code, body)
        self._link.see_answer(response.status_code, response.headers, reason)
        return response


def _refusal(status: int, body: bytes) -> str:
    """What the receiver says in the protocol's own words; "" where it took all."""
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
    """As the system says it: libraries wrap it into lines that nobody reads."""
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
