"""Spans of the newest readings by number: which stage is around a collective."""

from __future__ import annotations

from dfx_agent.node.time.account import SpanEvent
from dfx_agent.node.time.sweep import STILL_OPEN, Row
from dfx_agent.wire.records import STAGE

_KEEP_SPANS = 128


class SpanBook:
    """Of one process: its last 128 spans or more, and those that are open."""

    def __init__(self) -> None:
        # of the newest readings, and of those before
        self._newest: dict[int, Row] = {}
        self._older: dict[int, Row] = {}

    def note(self, spans: dict[int, Row], odd: dict[int, Row]) -> None:
        """What a reading brought; ``spans`` is taken over."""
        if len(self._newest) + len(spans) >= _KEEP_SPANS:
            self._older, self._newest = self._newest, spans
        else:
            self._newest |= spans
        self._newest |= odd

    def note_open(self, event: SpanEvent) -> None:
        """One that has not ended yet."""
        span, begin_ns = event.span, event.begin_ns
        self._newest[span] = begin_ns, span, STILL_OPEN, event.parent, event.kind, event.name

    def stage_of(self, parent: int) -> str:
        """The innermost stage around a span; "" when there was none or it is not known any more."""
        while parent:
            row = self._newest.get(parent) or self._older.get(parent)
            if row is None:
                return ""
            _, span, _, above, kind, name = row
            if kind == STAGE:
                return name
            parent = above if above < span else 0
        return ""
