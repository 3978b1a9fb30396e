"""Where one process' time went, accounted exactly once, in event time, up to a watermark.

At every instant the open spans without an open child are the leaves. Any stage among the leaves
makes the instant active, for each of these stages once; else the wait that began last has it; else
it is idle. So ``wall = active + waits + idle`` holds by construction, nested spans contribute
their exclusive time and concurrent ones (tasks, threads) never count double.

Spans arrive as records when they end and from the in-flight table while they are open, so that a
ten-minute rollout moves the counters while it runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.agent.sweep import IDLE, STILL_OPEN, Row, concurrent, nested
from dfx_agent.snapshot import PieceKind, TimeSplit
from dfx_agent.wire.records import NO_STEP, STAGE

_MAX_PIECES = 256
_MISSING_POLLS = 3


class SpanEvent(NamedTuple):
    """A span as the guest saw it; ``end_ns`` is None while it is open.

    A collective is one too, named "op@group", its ``step`` is the group's sequence number; its
    time belongs to the wait around it unless it ``is_accounted``.
    """

    span: int
    parent: int
    kind: int
    name: str
    begin_ns: int
    end_ns: int | None
    step: int = NO_STEP
    is_accounted: bool = True


@dataclass(slots=True)
class PieceNs:
    """A stretch of one process' time on its monotonic clock."""

    kind: PieceKind
    name: str
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class Split:
    """Nanoseconds of one window; becomes a TimeSplit."""

    active_ns: int = 0
    idle_ns: int = 0
    stages_ns: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    waits_ns: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def merge(self, other: Split) -> None:
        self.active_ns += other.active_ns
        self.idle_ns += other.idle_ns
        for stage, value in other.stages_ns.items():
            self.stages_ns[stage] += value
        for wait, value in other.waits_ns.items():
            self.waits_ns[wait] += value

    def as_seconds(self) -> TimeSplit:
        waits: dict[str, dict[str, float]] = {}
        for (kind, stage), value in self.waits_ns.items():
            waits.setdefault(kind, {})[stage] = value / 1e9
        wall_ns = self.active_ns + self.idle_ns + sum(self.waits_ns.values())
        stages = {stage: value / 1e9 for stage, value in self.stages_ns.items()}
        return TimeSplit(wall_ns / 1e9, self.active_ns / 1e9, self.idle_ns / 1e9, stages, waits)


@dataclass(slots=True)
class Window:
    """One step of one process. ``step`` is None before the first ``set_step``."""

    step: int | None
    begin_ns: int
    end_ns: int | None = None
    split: Split = field(default_factory=Split)
    pieces: list[PieceNs] = field(default_factory=list)
    num_omitted_pieces: int = 0

    def book(
        self, kind: int, name: str, stage: str, begin_ns: int, end_ns: int, others: Sequence[str]
    ) -> None:
        """A stretch that ``name`` has; ``others`` are stages that ran at the same time."""
        split, length = self.split, end_ns - begin_ns
        if kind == STAGE:
            split.active_ns += length
            split.stages_ns[name] += length
            for other in others:
                split.stages_ns[other] += length
        elif kind == IDLE:
            split.idle_ns += length
        else:
            split.waits_ns[name, stage] += length
        if self.num_omitted_pieces:
            self.num_omitted_pieces += 1
        else:
            self._add_piece(kind, name, begin_ns, end_ns)

    def _add_piece(self, kind: int, name: str, begin_ns: int, end_ns: int) -> None:
        word: PieceKind = "stage" if kind == STAGE else "idle" if kind == IDLE else "wait"
        pieces = self.pieces
        if pieces:
            last = pieces[-1]
            if last.end_ns == begin_ns and last.name == name and last.kind == word:
                last.end_ns = end_ns
                return
        if len(pieces) < _MAX_PIECES:
            pieces.append(PieceNs(word, name, begin_ns, end_ns))
        else:
            self.num_omitted_pieces += 1


class TimeAccount:
    """Feed spans, steps and open spans; ``advance`` accounts up to a point of event time."""

    def __init__(self, begin_ns: int) -> None:
        self.watermark_ns = begin_ns
        self.current = Window(None, begin_ns)
        self.finished: list[Window] = []
        self.num_late = 0
        self.num_vanished = 0
        self._before = Split()
        self._rows: dict[int, Row] = {}  # by span: what is not wholly accounted yet
        self._steps: list[tuple[int, int]] = []
        self._open: set[int] = set()
        self._missing: dict[int, int] = {}

    def totals(self) -> Split:
        """Everything accounted so far."""
        total = Split()
        total.merge(self._before)
        total.merge(self.current.split)
        return total

    def add(self, span: int, parent: int, kind: int, name: str, begin_ns: int, end_ns: int) -> None:
        """A finished span; what lies before the watermark and was not known open is late."""
        watermark = self.watermark_ns
        if end_ns <= begin_ns or not span:
            return
        if begin_ns < watermark:
            if span not in self._rows:
                self.num_late += 1
            if end_ns <= watermark:
                self._rows.pop(span, None)
                self._open.discard(span)
                return
            begin_ns = watermark
        parent = parent if parent < span else 0  # ids grow; anything else would be a cycle
        self._rows[span] = (begin_ns, span, end_ns, parent, kind, name)
        if self._open:
            self._open.discard(span)

    def begin_step(self, time_ns: int, step: int) -> None:
        self._steps.append((max(time_ns, self.watermark_ns), step))

    def note_open(self, spans: Iterable[SpanEvent]) -> None:
        """What is open now. A span that was open and left no record is closed after 3 calls."""
        seen = set()
        for event in spans:
            span, parent = event.span, event.parent
            seen.add(span)
            if span and span not in self._rows and event.is_accounted:
                self._open.add(span)
                parent = parent if parent < span else 0
                begin = max(event.begin_ns, self.watermark_ns)
                self._rows[span] = (begin, span, STILL_OPEN, parent, event.kind, event.name)
        self._missing = {span: self._missing.get(span, 0) + 1 for span in self._open - seen}
        for span, count in self._missing.items():
            if count >= _MISSING_POLLS:
                self.num_vanished += 1
                self._open.discard(span)
                del self._rows[span]

    def advance(self, until_ns: int) -> None:
        """Account everything up to ``until_ns``; never goes back."""
        if until_ns <= self.watermark_ns:
            return
        self._steps.sort()
        rows = sorted(self._rows.values())
        give = self._give if self._steps else self.current.book
        reached = nested(rows, self.watermark_ns, until_ns, give)
        if reached < until_ns:
            concurrent(rows, reached, until_ns, give)
        while self._steps and self._steps[0][0] <= until_ns:
            self._do_step(*self._steps.pop(0))
        self.watermark_ns = until_ns
        for begin, span, end, *_ in rows:
            if begin >= until_ns:
                break
            if end <= until_ns:
                del self._rows[span]

    def finish(self, end_ns: int, *, orderly: bool) -> None:
        """The process is gone; an orderly end closes its last step, a death leaves it open."""
        self.advance(max(end_ns, self.watermark_ns))
        if orderly and self.current.step is not None:
            self._do_step(self.watermark_ns, None)

    def _do_step(self, time_ns: int, step: int | None) -> None:
        self.current.end_ns = time_ns
        self._before.merge(self.current.split)
        self.finished.append(self.current)
        self.current = Window(step, time_ns)

    def _give(
        self, kind: int, name: str, stage: str, begin: int, end: int, others: Sequence[str]
    ) -> None:
        """Book one stretch, cut where steps begin in it."""
        while self._steps and self._steps[0][0] < end:
            time_ns, step = self._steps.pop(0)
            if time_ns > begin:
                self.current.book(kind, name, stage, begin, time_ns, others)
                begin = time_ns
            self._do_step(time_ns, step)
        self.current.book(kind, name, stage, begin, end, others)
