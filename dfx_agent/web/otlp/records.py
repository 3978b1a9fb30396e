"""OTLP log records that carry facts, out of the bytes of a request, and what answers it.

The protocol's own messages: opentelemetry-proto. A request that is compressed is read to its bound
and no further, whatever it says of itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from dfx_agent.base.text import plain
from dfx_agent.facts import envelope

CONTENT_TYPE = "application/x-protobuf"
_GZIP = 31  # zlib's window with a header of gzip
_MAX_NAME = 256


class TooLargeError(ValueError):
    """A body that is larger than a hub reads."""


@dataclass(frozen=True, slots=True)
class FactsRecord:
    """One document and what was written on it.

    ``agent``: one start of one agent. ``run`` is "" where it sees none. ``url``: where the agent
    serves, "" where it is not told.
    """

    node: str
    agent: str
    run: str
    document: bytes
    is_last: bool
    url: str


@dataclass(frozen=True, slots=True)
class Request:
    """``num_foreign``: records that no agent has written."""

    records: tuple[FactsRecord, ...]
    num_foreign: int


def read(body: bytes, encoding: str, max_bytes: int) -> Request:
    """ValueError in one line where it cannot be read; TooLargeError above ``max_bytes``, plain."""
    try:
        message = ExportLogsServiceRequest.FromString(unpacked(body, encoding, max_bytes))
    except DecodeError:
        raise ValueError("not an OTLP request of logs") from None
    found = [_record(each) for each in _log_records(message)]
    records = tuple(record for record in found if record is not None)
    return Request(records, len(found) - len(records))


def answer(num_refused: int, message: str) -> bytes:
    """Taken, but for ``num_refused`` records."""
    response = ExportLogsServiceResponse()
    if num_refused:
        response.partial_success.rejected_log_records = num_refused
        response.partial_success.error_message = message
    body: bytes = response.SerializeToString()
    return body


def refusal(message: str) -> bytes:
    """The body of an answer that is an error."""
    body: bytes = Status(message=message).SerializeToString()
    return body


def unpacked(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """The plain bytes; ValueError in one line, TooLargeError above ``max_bytes``."""
    if encoding in {"", "identity"}:
        return body
    if encoding != "gzip":
        raise ValueError(f"Content-Encoding {plain(encoding)[:40]}: only gzip is read")
    unpacking = zlib.decompressobj(_GZIP)
    try:
        found = unpacking.decompress(body, max_bytes)
    except zlib.error:
        raise ValueError("not gzip, though it says so") from None
    if len(found) >= max_bytes:
        raise TooLargeError(f"more than {max_bytes >> 20} MiB when it is unpacked")
    if not unpacking.eof:
        raise ValueError("gzip without its end")
    return found


def _log_records(message: Any) -> Iterator[Any]:
    for resource in message.resource_logs:
        for scope in resource.scope_logs:
            yield from scope.log_records


def _record(record: Any) -> FactsRecord | None:
    """None of one that says not whose it is."""
    known = {each.key: each.value for each in record.attributes}
    node, agent = _text(known, envelope.NODE), _text(known, envelope.AGENT)
    if not node or not agent:
        return None
    return FactsRecord(
        node=node,
        agent=agent,
        run=_text(known, envelope.RUN),
        document=_bytes(record.body),
        is_last=envelope.IS_LAST in known and bool(known[envelope.IS_LAST].bool_value),
        url=_text(known, envelope.URL),
    )


def _text(known: dict[str, Any], name: str) -> str:
    return plain(known[name].string_value)[:_MAX_NAME] if name in known else ""


def _bytes(body: Any) -> bytes:
    """Text, or the bytes of it."""
    return bytes(body.bytes_value) or body.string_value.encode()
