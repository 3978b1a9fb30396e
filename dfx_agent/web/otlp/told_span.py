"""A span as a job tells it; nothing of any library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Attributes = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class ToldSpan:
    """One span that has ended. Times are Unix nanoseconds of who sends it.

    ``parent`` is b"" of the root of a trace. ``resource``: attributes of its process.
    """

    name: str
    trace: bytes
    span: bytes
    parent: bytes
    begin_ns: int
    end_ns: int
    attributes: Attributes
    resource: Attributes
