"""An exception that nobody caught, at a fixed place of the segment: readable after any death."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dfx_agent.wire import layout


class Failure(NamedTuple):
    """An uncaught exception: when it was raised (monotonic ns), what it says, and where.

    ``file``, ``line`` and ``function`` are of the job's own code. ``thread``: the name of the
    thread that it ended; "" of the one that ended the process.
    """

    time_ns: int
    type: str
    message: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    thread: str = ""


def writer(buffer: Any) -> Callable[[int, Failure], None]:
    """What writes failures into a mapped segment, each at its place."""

    def write(place: int, failure: Failure) -> None:
        names = failure.type, failure.message, failure.file, failure.function, failure.thread
        layout.FAILURE.pack_into(
            buffer, _offset(place), 1, failure.time_ns, failure.line & 0xFFFFFFFF,
            *(text.encode("utf-8", "replace") for text in names), 1,
        )  # fmt: skip

    return write


def parsed_failure(data: bytes) -> Failure | None:
    """None where none was written, or one is being written."""
    if len(data) < layout.FAILURE.size:
        return None
    head, time_ns, line, *texts, tail = layout.FAILURE.unpack(data)
    if head != 1 or tail != 1:
        return None
    kind, message, file, function, thread = map(_text, texts)
    return Failure(time_ns, kind, message, file, line, function, thread)


def failure_place(place: int) -> tuple[int, int]:
    """Offset and size of a failure in the segment."""
    return _offset(place), layout.FAILURE.size


def _offset(place: int) -> int:
    return layout.FAILURE_OFFSET + place * layout.FAILURE.size


def _text(data: bytes) -> str:
    """Up to the first zero, one line, whatever a stranger has written."""
    text = data.partition(b"\0")[0].decode("utf-8", "replace")
    return " ".join(text.split())
