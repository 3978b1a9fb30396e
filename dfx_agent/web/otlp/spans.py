"""OTLP spans of a job out of the bytes of a request, and what answers it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from dfx_agent.base.text import plain
from dfx_agent.web.otlp.records import unpacked
from dfx_agent.web.otlp.told_span import Attributes, ToldSpan

_MAX_NAME = 96


def read(body: bytes, encoding: str, max_bytes: int) -> list[ToldSpan]:
    """ValueError in one line where it cannot be read; TooLargeError above ``max_bytes``, plain."""
    try:
        message = ExportTraceServiceRequest.FromString(unpacked(body, encoding, max_bytes))
    except DecodeError:
        raise ValueError("not an OTLP request of traces") from None
    found = []
    for of_resource in message.resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        for scope in of_resource.scope_spans:
            found += [_span(span, resource) for span in scope.spans]
    return found


def answer(num_refused: int, message: str) -> bytes:
    """Taken, but for ``num_refused`` spans."""
    response = ExportTraceServiceResponse()
    if num_refused:
        response.partial_success.rejected_spans = num_refused
        response.partial_success.error_message = message
    body: bytes = response.SerializeToString()
    return body


def _span(span: Any, resource: Attributes) -> ToldSpan:
    return ToldSpan(
        plain(span.name)[:_MAX_NAME],
        bytes(span.trace_id),
        bytes(span.span_id),
        bytes(span.parent_span_id),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        resource,
    )


def _attributes(told: Iterable[Any]) -> dict[str, str | int]:
    """Those that are text or a whole number: others join nothing."""
    found: dict[str, str | int] = {}
    for each in told:
        kind = each.value.WhichOneof("value")
        if kind == "string_value":
            found[each.key] = plain(each.value.string_value)[:_MAX_NAME]
        elif kind == "int_value":
            found[each.key] = each.value.int_value
    return found
