"""OTLP log records that carry facts, out of the bytes of a request, and what answers it.

The protocol's own messages: opentelemetry-proto, logs/v1/logs.proto and common/v1/common.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from dfx_agent.base.text import plain
from dfx_agent.facts import envelope
from dfx_agent.hub.otlp.body_reader import BodyReader, DamagedError, TooLargeError

CONTENT_TYPE = "application/x-protobuf"
MAX_RECORDS = 1024
_MAX_NAME = 256

# numbers of fields
_RESOURCE_LOGS, _SCOPE_LOGS, _LOG_RECORDS, _BODY, _ATTRIBUTES = 1, 2, 2, 5, 6
_KEY, _VALUE, _TEXT, _BOOL, _BYTES = 1, 2, 1, 2, 7


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
class Request:
    """``num_foreign``: records that were not written by an agent."""

    records: tuple[FactsRecord, ...]
    num_foreign: int


def read(body: bytes, encoding: str, max_bytes: int) -> Request:
    """ValueError in one line where it cannot be read; TooLargeError above ``max_bytes``, plain."""
    reader = BodyReader(body, encoding, max_bytes)
    found: list[FactsRecord | None] = []
    try:
        for size in _log_records(reader):
            if len(found) == MAX_RECORDS:
                raise TooLargeError(f"more than {MAX_RECORDS:,} log records")
            found.append(_record(reader, size))
    except DamagedError as error:
        raise ValueError(f"not an OTLP request of logs: {error}") from None
    records = tuple(record for record in found if record is not None)
    return Request(records, len(found) - len(records))


def answer(num_refused: int, message: str) -> bytes:
    """Answer: accepted, except for ``num_refused`` records."""
    response = ExportLogsServiceResponse()
    if num_refused:
        response.partial_success.rejected_log_records = num_refused
        response.partial_success.error_message = message
    body: bytes = response.SerializeToString()
    return body


def refusal(message: str) -> bytes:
    """The body of an error."""
    body: bytes = Status(message=message).SerializeToString()
    return body


def _log_records(reader: BodyReader) -> Iterator[int]:
    """Sizes of the records; each is read before the next one."""
    for resource_size in reader.messages(_RESOURCE_LOGS):
        for scope_size in reader.messages(_SCOPE_LOGS, resource_size):
            yield from reader.messages(_LOG_RECORDS, scope_size)


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
