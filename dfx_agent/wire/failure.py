"""An uncaught exception, stored at a fixed offset of the segment: readable after any death."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dfx_agent.wire import layout


class Failure(NamedTuple):
    """An uncaught exception of the job."""

    time_ns: int
    """When it was raised, on the host's monotonic clock."""
    type: str
    """Class of the exception."""
    message: str = ""
    file: str = ""
    """File of the innermost frame in the job's own code; ``line`` and ``function`` likewise."""
    line: int = 0
    function: str = ""
    thread: str = ""
    """Name of the thread that it ended; "" if it ended the process."""


def make_failure_writer(buffer: Any) -> Callable[[int, Failure], None]:
    """Return a function that writes a failure into slot MAIN_FAILURE or THREAD_FAILURE."""

    def write(slot: int, failure: Failure) -> None:
        names = failure.type, failure.message, failure.file, failure.function, failure.thread
        layout.FAILURE.pack_into(
            buffer, _offset(slot), 1, failure.time_ns, failure.line & 0xFFFFFFFF,
            *(text.encode("utf-8", "replace") for text in names), 1,
        )  # fmt: skip

    return write


def parse_failure(data: bytes) -> Failure | None:
    """The failure in these bytes; None if there is none or it is being written."""
    if len(data) < layout.FAILURE.size:
        return None
    head, time_ns, line, *texts, tail = layout.FAILURE.unpack(data)
    if head != 1 or tail != 1:
        return None
    kind, message, file, function, thread = map(_text, texts)
    return Failure(time_ns, kind, message, file, line, function, thread)


def failure_location(slot: int) -> tuple[int, int]:
    """Offset and size of a failure slot in the segment."""
    return _offset(slot), layout.FAILURE.size


def _offset(slot: int) -> int:
    return layout.FAILURE_OFFSET + slot * layout.FAILURE.size


def _text(data: bytes) -> str:
    """Text up to the first zero byte, on one line, even if the bytes are corrupted."""
    text = data.partition(b"\0")[0].decode("utf-8", "replace")
    return " ".join(text.split())
