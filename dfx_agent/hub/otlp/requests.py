"""OTLP requests of log records that carry facts, and of spans of a job; what answers them.

The protocol's own messages: opentelemetry-proto, logs/v1/logs.proto, trace/v1/trace.proto and
common/v1/common.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from dfx_agent.base.text import plain
from dfx_agent.facts import envelope
from dfx_agent.hub.otlp.body_reader import BodyReader, DamagedError, TooLargeError
from dfx_agent.hub.otlp.traces import READ_ATTRIBUTES, Attributes, ReceivedSpan

CONTENT_TYPE = "application/x-protobuf"
MAX_RECORDS, MAX_SPANS = 1024, 1 << 14
# of one span, or of the attributes of its process; OpenTelemetry's own limit is 128 attributes
MAX_SPAN_BYTES, MAX_ATTRIBUTES = 64 << 10, 256
_MAX_NAME, _MAX_SPAN_NAME, _ID_BYTES = 256, 96, 16

# numbers of fields; those of spans are numbered as those of log records
_RESOURCES, _RESOURCE, _SCOPES, _ITEMS = 1, 1, 2, 2
_BODY, _ATTRIBUTES = 5, 6
_KEY, _VALUE, _TEXT, _BOOL, _BYTES = 1, 2, 1, 2, 7

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class FactsRecord:
    """One document with its metadata."""

    node: str
    agent: str  # identifies one start of one agent
    run: str  # "" if the agent sees none
    document: bytes
    is_last: bool
    url: str  # address of the agent, "" if unknown


@dataclass(frozen=True, slots=True)
class OtlpRequest(Generic[_Item]):
    """``num_left_out``: records that no agent wrote, or spans that are too large to be read."""

    items: tuple[_Item, ...]
    num_left_out: int


def read_records(body: bytes, encoding: str, max_bytes: int) -> OtlpRequest[FactsRecord]:
    """ValueError in one line where it cannot be read; TooLargeError above ``max_bytes``, plain."""
    with _readable("logs"):
        return _read(_records(BodyReader(body, encoding, max_bytes)), MAX_RECORDS, "log records")


def read_spans(body: bytes, encoding: str, max_bytes: int) -> OtlpRequest[ReceivedSpan]:
    """Raises as ``read_records``."""
    with _readable("traces"):
        return _read(_spans(BodyReader(body, encoding, max_bytes)), MAX_SPANS, "spans")


def answer_records(num_refused: int, message: str) -> bytes:
    """Answer: accepted, except for ``num_refused`` records."""
    response = ExportLogsServiceResponse()
    if num_refused:
        response.partial_success.rejected_log_records = num_refused
    return _answer(response, message if num_refused else "")


def answer_spans(num_refused: int, message: str) -> bytes:
    """Answer: accepted, except for ``num_refused`` spans."""
    response = ExportTraceServiceResponse()
    if num_refused:
        response.partial_success.rejected_spans = num_refused
    return _answer(response, message if num_refused else "")


def refusal(message: str) -> bytes:
    """The body of an error."""
    body: bytes = Status(message=message).SerializeToString()
    return body


def _answer(response: Any, message: str) -> bytes:
    if message:
        response.partial_success.error_message = message
    body: bytes = response.SerializeToString()
    return body


@contextmanager
def _readable(signal: str) -> Iterator[None]:
    try:
        yield
    except (DamagedError, DecodeError) as error:
        why = f": {error}" if isinstance(error, DamagedError) else ""
        raise ValueError(f"not an OTLP request of {signal}{why}") from None


def _read(read: Iterator[_Item | None], most: int, what: str) -> OtlpRequest[_Item]:
    found: list[_Item | None] = []
    for item in read:
        found.append(item)
        if len(found) > most:
            raise TooLargeError(f"more than {most:,} {what}")
    items = tuple(item for item in found if item is not None)
    return OtlpRequest(items, len(found) - len(items))


def _records(reader: BodyReader) -> Iterator[FactsRecord | None]:
    for resource_size in reader.messages(_RESOURCES):
        for scope_size in reader.messages(_SCOPES, resource_size):
            for size in reader.messages(_ITEMS, scope_size):
                yield _record(reader, size)


def _record(reader: BodyReader, size: int) -> FactsRecord | None:
    """None for a record that does not name its sender."""
    texts: dict[str, str] = {}
    document, is_last = b"", False
    for number, length, has_bytes in reader.fields(size):
        if number == _BODY and has_bytes:
            document = _document(reader, length)
        elif number == _ATTRIBUTES and has_bytes:
            key, text, flag = _attribute(reader, length)
            texts[key] = text
            is_last |= flag and key == envelope.IS_LAST
    node, agent = texts.get(envelope.NODE, ""), texts.get(envelope.AGENT, "")
    if not node or not agent:
        return None
    run, url = texts.get(envelope.RUN, ""), texts.get(envelope.URL, "")
    return FactsRecord(node, agent, run, document, is_last, url)


def _document(reader: BodyReader, size: int) -> bytes:
    """Text, or the bytes of it."""
    document = b""
    for number, length, has_bytes in reader.fields(size):
        if has_bytes and number in {_TEXT, _BYTES}:
            document = reader.read(length)
    return document


def _attribute(reader: BodyReader, size: int) -> tuple[str, str, bool]:
    """(key, its text or "", whether it is true)."""
    key, text, is_true = "", "", False
    for number, length, has_bytes in reader.fields(size):
        if number == _KEY and has_bytes:
            key = _name(reader, length)
        elif number == _VALUE and has_bytes:
            for kind, value, is_text in reader.fields(length):
                if kind == _TEXT and is_text:
                    text = _name(reader, value)
                is_true |= kind == _BOOL and not is_text and bool(value)
    return key, text, is_true


def _name(reader: BodyReader, size: int) -> str:
    """The beginning of a text; a character has up to four bytes."""
    text = reader.read(min(size, 4 * _MAX_NAME)).decode(errors="replace")
    return plain(text)[:_MAX_NAME]


def _spans(reader: BodyReader) -> Iterator[ReceivedSpan | None]:
    for size in reader.messages(_RESOURCES):
        yield from _spans_of_process(reader, size)


def _spans_of_process(reader: BodyReader, size: int) -> Iterator[ReceivedSpan | None]:
    """Spans of one process; None if they are too large to be read."""
    resource: dict[str, str | int] = {}
    for number, length, has_bytes in reader.fields(size):
        if number == _RESOURCE and has_bytes:
            if length > MAX_SPAN_BYTES:
                raise TooLargeError(f"a resource of more than {MAX_SPAN_BYTES >> 10} KiB")
            resource |= _read_attributes(Resource.FromString(reader.read(length)).attributes)
        elif number == _SCOPES and has_bytes:
            for span_size in reader.messages(_ITEMS, length):
                is_large = span_size > MAX_SPAN_BYTES
                yield None if is_large else _span(Span.FromString(reader.read(span_size)), resource)


def _span(span: Any, resource: Mapping[str, str | int]) -> ReceivedSpan:
    return ReceivedSpan(
        plain(span.name[:_MAX_SPAN_NAME])[:_MAX_SPAN_NAME],
        bytes(span.trace_id[:_ID_BYTES]),
        bytes(span.span_id[:_ID_BYTES]),
        bytes(span.parent_span_id[:_ID_BYTES]),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _read_attributes(span.attributes),
        resource,
    )


def _read_attributes(reported: Any) -> Attributes:
    """The attributes that are used, if they are text or an integer."""
    if len(reported) > MAX_ATTRIBUTES:
        raise TooLargeError(f"more than {MAX_ATTRIBUTES} attributes of one span or process")
    found: dict[str, str | int] = {}
    for attribute in reported:
        if attribute.key not in READ_ATTRIBUTES:
            continue
        kind = attribute.value.WhichOneof("value")
        if kind == "string_value":
            found[attribute.key] = plain(attribute.value.string_value[:_MAX_SPAN_NAME])[
                :_MAX_SPAN_NAME
            ]
        elif kind == "int_value":
            found[attribute.key] = attribute.value.int_value
    return found
