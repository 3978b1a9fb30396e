"""OTLP spans of a job out of the bytes of a request, and what answers it.

The protocol's own messages: opentelemetry-proto, trace/v1/trace.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from dfx_agent.base.text import plain
from dfx_agent.hub.otlp.body_reader import BodyReader, DamagedError, TooLargeError
from dfx_agent.hub.otlp.traces import READ_ATTRIBUTES, Attributes, ReceivedSpan

# of one span, or of the attributes of its process; OpenTelemetry's own limit is 128 attributes
MAX_SPAN_BYTES, MAX_ATTRIBUTES = 64 << 10, 256
MAX_SPANS = 1 << 14
_MAX_NAME, _ID_BYTES = 96, 16

# numbers of fields
_RESOURCE_SPANS, _RESOURCE, _SCOPE_SPANS, _SPANS = 1, 1, 2, 2


@dataclass(frozen=True, slots=True)
class Request:
    """``num_large``: spans that are too large to be read."""

    spans: tuple[ReceivedSpan, ...]
    num_large: int


def read(body: bytes, encoding: str, max_bytes: int) -> Request:
    """ValueError in one line where it cannot be read; TooLargeError above a bound."""
    reader = BodyReader(body, encoding, max_bytes)
    found: list[ReceivedSpan | None] = []
    try:
        for size in reader.messages(_RESOURCE_SPANS):
            for span in _spans(reader, size):
                found.append(span)
                if len(found) > MAX_SPANS:
                    raise TooLargeError(f"more than {MAX_SPANS:,} spans")
    except (DamagedError, DecodeError):
        raise ValueError("not an OTLP request of traces") from None
    spans = tuple(span for span in found if span is not None)
    return Request(spans, len(found) - len(spans))


def answer(num_refused: int, message: str) -> bytes:
    """Answer: accepted, except for ``num_refused`` spans."""
    response = ExportTraceServiceResponse()
    if num_refused:
        response.partial_success.rejected_spans = num_refused
        response.partial_success.error_message = message
    body: bytes = response.SerializeToString()
    return body


def _spans(reader: BodyReader, size: int) -> Iterator[ReceivedSpan | None]:
    """Spans of one process; None if they are too large to be read."""
    resource: dict[str, str | int] = {}
    for number, length, has_bytes in reader.fields(size):
        if number == _RESOURCE and has_bytes:
            if length > MAX_SPAN_BYTES:
                raise TooLargeError(f"a resource of more than {MAX_SPAN_BYTES >> 10} KiB")
            resource |= _attributes(Resource.FromString(reader.read(length)).attributes)
        elif number == _SCOPE_SPANS and has_bytes:
            for span_size in reader.messages(_SPANS, length):
                is_large = span_size > MAX_SPAN_BYTES
                yield None if is_large else _span(Span.FromString(reader.read(span_size)), resource)


def _span(span: Any, resource: Mapping[str, str | int]) -> ReceivedSpan:
    return ReceivedSpan(
        plain(span.name[:_MAX_NAME])[:_MAX_NAME],
        bytes(span.trace_id[:_ID_BYTES]),
        bytes(span.span_id[:_ID_BYTES]),
        bytes(span.parent_span_id[:_ID_BYTES]),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        resource,
    )


def _attributes(reported: Any) -> Attributes:
    """The attributes that are used, if they are text or an integer."""
    if len(reported) > MAX_ATTRIBUTES:
        raise TooLargeError(f"more than {MAX_ATTRIBUTES} attributes of one span or process")
    found: dict[str, str | int] = {}
    for attribute in reported:
        if attribute.key not in READ_ATTRIBUTES:
            continue
        kind = attribute.value.WhichOneof("value")
        if kind == "string_value":
            found[attribute.key] = plain(attribute.value.string_value[:_MAX_NAME])[:_MAX_NAME]
        elif kind == "int_value":
            found[attribute.key] = attribute.value.int_value
    return found
