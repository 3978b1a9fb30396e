"""Recent spans of a process by id, to find the stage around a collective."""

from __future__ import annotations

from dfx_agent.node.time.account import SpanEvent
from dfx_agent.node.time.sweep import STILL_OPEN, Row
from dfx_agent.wire.records import STAGE

_KEEP_SPANS = 128


class SpanBook:
    """The last 128 spans of one process or more, and its open spans."""

    def __init__(self) -> None:
        # of the latest polls, and of the polls before
        self._recent: dict[int, Row] = {}
        self._older: dict[int, Row] = {}

    def note(self, spans: dict[int, Row], odd: dict[int, Row]) -> None:
        """Add the spans of one poll. The book owns ``spans`` afterwards."""
        if len(self._recent) + len(spans) >= _KEEP_SPANS:
            self._older, self._recent = self._recent, spans
        else:
            self._recent |= spans
        self._recent |= odd

    def note_open(self, event: SpanEvent) -> None:
        """Add an open span."""
        span, begin_ns = event.span, event.begin_ns
        self._recent[span] = begin_ns, span, STILL_OPEN, event.parent, event.kind, event.name

    def stage_of(self, parent: int) -> str:
        """The innermost stage around a span; "" if there is none or it is no longer stored."""
        while parent:
            row = self._recent.get(parent) or self._older.get(parent)
            if row is None:
                return ""
            _, span, _, above, kind, name = row
            if kind == STAGE:
                return name
            parent = above if above < span else 0
        return ""
