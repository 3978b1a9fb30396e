"""Where one process' time went, accounted exactly once, in event time, up to a watermark.

At every instant the open spans without an open child are the leaves. Any stage among the leaves
makes the instant active, for each of these stages once; else the wait that began last has it; else
it is idle. So ``wall = active + waits + idle`` holds by construction, nested spans contribute
their exclusive time and concurrent ones (tasks, threads) never count double.

Spans arrive as records when they end and from the in-flight table while they are open, so that a
ten-minute rollout moves the counters while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.snapshot import PieceKind, TimeSplit
from dfx_agent.wire.records import NO_STEP, STAGE

_MAX_PIECES = 256
_MISSING_POLLS = 3
_CLOSE, _STEP, _OPEN = 0, 1, 2


class SpanEvent(NamedTuple):
    """A span as the guest saw it; ``end_ns`` is None while it is open."""

    span: int
    parent: int
    kind: int
    name: str
    begin_ns: int
    end_ns: int | None
    step: int = NO_STEP


class PieceNs(NamedTuple):
    """A stretch of one process' time on its monotonic clock."""

    kind: PieceKind
    name: str
    begin_ns: int
    end_ns: int


@dataclass
class Split:
    """Nanoseconds of one window; becomes a TimeSplit."""

    active_ns: int = 0
    idle_ns: int = 0
    stages_ns: dict[str, int] = field(default_factory=dict)
    waits_ns: dict[tuple[str, str], int] = field(default_factory=dict)

    def merge(self, other: Split) -> None:
        self.active_ns += other.active_ns
        self.idle_ns += other.idle_ns
        for stage, value in other.stages_ns.items():
            self.stages_ns[stage] = self.stages_ns.get(stage, 0) + value
        for wait, value in other.waits_ns.items():
            self.waits_ns[wait] = self.waits_ns.get(wait, 0) + value

    def as_seconds(self) -> TimeSplit:
        waits: dict[str, dict[str, float]] = {}
        for (kind, stage), value in self.waits_ns.items():
            waits.setdefault(kind, {})[stage] = value / 1e9
        wall_ns = self.active_ns + self.idle_ns + sum(self.waits_ns.values())
        stages = {stage: value / 1e9 for stage, value in self.stages_ns.items()}
        return TimeSplit(wall_ns / 1e9, self.active_ns / 1e9, self.idle_ns / 1e9, stages, waits)


@dataclass
class Window:
    """One step of one process. ``step`` is None before the first ``set_step``."""

    step: int | None
    begin_ns: int
    end_ns: int | None = None
    split: Split = field(default_factory=Split)
    pieces: list[PieceNs] = field(default_factory=list)
    num_omitted_pieces: int = 0

    def add_piece(self, kind: PieceKind, name: str, begin_ns: int, end_ns: int) -> None:
        last = self.pieces[-1] if self.pieces else None
        if last and (last.kind, last.name, last.end_ns) == (kind, name, begin_ns):
            self.pieces[-1] = last._replace(end_ns=end_ns)
        elif len(self.pieces) < _MAX_PIECES:
            self.pieces.append(PieceNs(kind, name, begin_ns, end_ns))
        else:
            self.num_omitted_pieces += 1


class _Open:
    __slots__ = ("kind", "name", "num_children", "parent")

    def __init__(self, parent: int, kind: int, name: str) -> None:
        self.parent = parent
        self.kind = kind
        self.name = name
        self.num_children = 0


class TimeAccount:
    """Feed spans, steps and open spans; ``advance`` accounts up to a point of event time."""

    def __init__(self, begin_ns: int) -> None:
        self.watermark_ns = begin_ns
        self.current = Window(None, begin_ns)
        self.finished: list[Window] = []
        self.num_late = 0
        self.num_vanished = 0
        self._before = Split()
        self._events: list[tuple[int, int, int, int, int, int, str]] = []
        self._open: dict[int, _Open] = {}
        self._leaves: dict[int, _Open] = {}
        self._known: set[int] = set()
        self._closing: set[int] = set()
        self._missing: dict[int, int] = {}

    def totals(self) -> Split:
        """Everything accounted so far."""
        total = Split()
        total.merge(self._before)
        total.merge(self.current.split)
        return total

    def add(self, event: SpanEvent) -> None:
        """A finished span; what lies before the watermark and was not known open is late."""
        span, parent, kind, name, begin, end, _ = event
        watermark = self.watermark_ns
        if end is None or end <= begin:
            return
        if span not in self._known:
            if begin < watermark:
                self.num_late += 1
                if end <= watermark:
                    return
            self._push_open(max(begin, watermark), span, parent, kind, name)
        self._push_close(max(end, watermark), span)

    def begin_step(self, time_ns: int, step: int) -> None:
        self._events.append((max(time_ns, self.watermark_ns), _STEP, 0, step, 0, 0, ""))

    def note_open(self, spans: Iterable[SpanEvent]) -> None:
        """What is open now. A span that was open and left no record is closed after 3 calls."""
        seen = set()
        for span, parent, kind, name, begin, _, _ in spans:
            seen.add(span)
            if span not in self._known:
                self._push_open(max(begin, self.watermark_ns), span, parent, kind, name)
        gone = self._known - seen - self._closing
        self._missing = {span: self._missing.get(span, 0) + 1 for span in gone}
        for span, count in self._missing.items():
            if count >= _MISSING_POLLS:
                self.num_vanished += 1
                self._push_close(self.watermark_ns, span)

    def advance(self, until_ns: int) -> None:
        """Account everything up to ``until_ns``; never goes back."""
        if until_ns <= self.watermark_ns:
            return
        self._events.sort()
        done = 0
        for time_ns, op, _, span, parent, kind, name in self._events:
            if time_ns > until_ns:
                break
            done += 1
            self._accrue(time_ns)
            if op == _OPEN:
                self._do_open(span, parent, kind, name)
            elif op == _CLOSE:
                self._do_close(span)
            else:
                self._do_step(time_ns, span)
        del self._events[:done]
        self._accrue(until_ns)

    def finish(self, end_ns: int, *, orderly: bool) -> None:
        """The process is gone; an orderly end closes its last step, a death leaves it open."""
        self.advance(max(end_ns, self.watermark_ns))
        if orderly and self.current.step is not None:
            self._do_step(self.watermark_ns, None)

    def _push_open(self, time_ns: int, span: int, parent: int, kind: int, name: str) -> None:
        parent = parent if parent < span else 0  # ids grow; anything else would be a cycle
        self._known.add(span)
        self._events.append((time_ns, _OPEN, span, span, parent, kind, name))

    def _push_close(self, time_ns: int, span: int) -> None:
        self._closing.add(span)
        self._events.append((time_ns, _CLOSE, -span, span, 0, 0, ""))

    def _do_open(self, span: int, parent: int, kind: int, name: str) -> None:
        self._open[span] = self._leaves[span] = _Open(parent, kind, name)
        above = self._open.get(parent)
        if above is not None:
            above.num_children += 1
            self._leaves.pop(parent, None)

    def _do_close(self, span: int) -> None:
        self._known.discard(span)
        self._closing.discard(span)
        closed = self._open.pop(span, None)
        self._leaves.pop(span, None)
        above = self._open.get(closed.parent) if closed else None
        if closed and above:
            above.num_children -= 1
            if not above.num_children:
                self._leaves[closed.parent] = above

    def _do_step(self, time_ns: int, step: int | None) -> None:
        self.current.end_ns = time_ns
        self._before.merge(self.current.split)
        self.finished.append(self.current)
        self.current = Window(step, time_ns)

    def _accrue(self, until_ns: int) -> None:
        begin = self.watermark_ns
        elapsed = until_ns - begin
        if elapsed <= 0:
            return
        self.watermark_ns = until_ns
        window = self.current
        split = window.split
        stages = [span for span, leaf in self._leaves.items() if leaf.kind == STAGE]
        if stages:
            split.active_ns += elapsed
            for name in {self._open[span].name for span in stages}:
                split.stages_ns[name] = split.stages_ns.get(name, 0) + elapsed
            window.add_piece("stage", self._open[max(stages)].name, begin, until_ns)
        elif self._leaves:
            span = max(self._leaves)
            wait = self._leaves[span].name
            key = wait, self._stage_above(span)
            split.waits_ns[key] = split.waits_ns.get(key, 0) + elapsed
            window.add_piece("wait", wait, begin, until_ns)
        else:
            split.idle_ns += elapsed
            window.add_piece("idle", "idle", begin, until_ns)

    def _stage_above(self, span: int) -> str:
        above = self._open.get(self._open[span].parent)
        while above is not None and above.kind != STAGE:
            above = self._open.get(above.parent)
        return above.name if above else ""
