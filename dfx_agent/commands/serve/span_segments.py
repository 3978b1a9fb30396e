"""Writes spans that a job sends as a guest writes its records, so that both are read the same way.

Spans of a rank that has a guest are refused. A step of spans is written when its trace is over.
So the reader uses the time of the records, not the clock (``VERSION_OF_SPAN_SEGMENT``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dfx_agent.base.log import OncePerPlace
from dfx_agent.commands.serve.span_traces import RankSteps, SpanSender, SpanTraces, Stage
from dfx_agent.hub.otlp.traces import ReceivedSpan
from dfx_agent.snapshot import RankRow, RunRow, SpansRow
from dfx_agent.wire import Identity, SegmentError, SegmentWriter, layout
from dfx_agent.wire.records import NO_STEP, STAGE, STEP

_EVERY_SECONDS = 1.0
_NUM_RECORDS = 1 << 14
# of one rank between two readings, a quarter of its ring
_MAX_AT_ONCE = 1 << 12
_MAX_RANKS = 1024
_MAX_WAITING = 64  # traces of one rank
_RUN = "otlp"  # of spans that name none, where there is not one run alone

Runs = Callable[[], Sequence[RunRow]]


class _Segment(SegmentWriter):
    """Created when its first span began, so that nothing of it is from before."""

    def __init__(self, directory: str, identity: Identity, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        super().__init__(
            directory,
            identity,
            guest_version=layout.VERSION_OF_SPAN_SEGMENT,
            num_records=_NUM_RECORDS,
        )

    def _write_preamble(self, guest_version: str, num_records: int) -> None:
        super()._write_preamble(guest_version, num_records)
        layout.WORD.pack_into(self._buffer, layout.CREATED_OFFSET, self._begin_ns)


@dataclass
class _Rank:
    """One rank that sends spans, and the steps that are still to be written."""

    segment: SegmentWriter
    run: str
    step: int | None = None
    end_ns: int = 0
    num_spans: int = 0
    names: dict[str, int] = field(default_factory=dict)
    waiting: deque[RankSteps] = field(default_factory=deque)


class SpanSegments:
    """``take`` from any thread. ``runs``: the shown runs; ``is_ours``: a rank that sends spans."""

    def __init__(self, directory: str, runs: Runs, is_ours: Callable[[RankRow], bool]) -> None:
        self._directory, self._runs, self._is_ours = directory, runs, is_ours
        self._traces = SpanTraces()
        self._ranks: dict[SpanSender, _Rank] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dfx-spans", daemon=True)
        self._log = OncePerPlace("dfx_agent.otlp")

    def take(self, spans: Iterable[ReceivedSpan]) -> tuple[int, str]:
        """(how many are left out, the first that ever was, and why)."""
        with self._lock:
            num_left_out = self._traces.add(spans, time.monotonic())
            if not self._thread.is_alive() and not self._stop.is_set():
                self._thread.start()
            return num_left_out, self._traces.first if num_left_out else ""

    def refuse(self, message: str, num_spans: int) -> None:
        """So many spans, or a request, could not be read."""
        with self._lock:
            self._traces.leave_out("spans", message, num_spans)

    def row(self) -> SpansRow:
        with self._lock:
            traces = self._traces
            return SpansRow(traces.num_taken, traces.num_left_out, traces.first)

    def stop(self) -> None:
        """What is whole is written; the segments end in an orderly way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * _EVERY_SECONDS)
        with self._lock:
            for rank in self._ranks.values():
                rank.segment.finish()
                rank.segment.close()
            self._ranks.clear()

    def write(self, now_seconds: float) -> None:
        """Of traces that are over by now."""
        with self._lock:
            complete = self._traces.whole(now_seconds)
        if complete:
            runs = self._runs()
            with self._lock:
                for steps in complete:
                    self._queue(steps, runs)
        with self._lock:
            for rank in self._ranks.values():
                _write_some(rank)

    def _loop(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            try:
                self.write(time.monotonic())
            except Exception as error:  # noqa: BLE001 (a fault of ours: logged, the loop continues)
                self._log.error("spans", error)

    def _queue(self, steps: RankSteps, runs: Sequence[RunRow]) -> None:
        sender = steps.sender
        run = sender.run or self._run_of(runs)
        why = self._refusal(sender, run, runs)
        rank = None
        try:
            rank = None if why else self._rank(sender, run, steps.begin_ns)
        except SegmentError as error:
            why = str(error)
        if rank is not None and steps.end_ns <= rank.end_ns:
            why = "it came after a later step of its rank"
        elif rank is not None and len(rank.waiting) >= _MAX_WAITING:
            why = "more traces than can be read"
        if why:
            name = steps.stages[0].name if steps.stages else f"step {steps.step}"
            self._traces.leave_out(name, why, max(1, len(steps.stages)))
        elif rank is not None:
            rank.end_ns = steps.end_ns
            rank.waiting.append(steps)

    def _refusal(self, sender: SpanSender, run: str, runs: Sequence[RunRow]) -> str:
        if sender not in self._ranks and len(self._ranks) >= _MAX_RANKS:
            return f"more than {_MAX_RANKS:,} ranks send spans"
        label = str(sender.rank)
        has_guest = any(
            (row.role, row.rank) == (sender.role, label) and not self._is_ours(row)
            for run_row in runs
            if run_row.run == run
            for row in run_row.ranks
        )
        return f"{sender.role} rank {label} has a guest, which reports its stages" * has_guest

    def _run_of(self, runs: Sequence[RunRow]) -> str:
        """The only living run, else ``_RUN``."""
        living = {
            run.run
            for run in runs
            if any(r.state == "live" and not self._is_ours(r) for r in run.ranks)
        }
        return living.pop() if len(living) == 1 else _RUN

    def _rank(self, sender: SpanSender, run: str, begin_ns: int) -> _Rank:
        rank = self._ranks.get(sender)
        if rank is None:
            identity = Identity(
                run=run, role=sender.role, rank=sender.rank, host=sender.host or _RUN
            )
            segment = _Segment(self._directory, identity, begin_ns)
            rank = self._ranks[sender] = _Rank(segment, run)
        return rank


def _write_some(rank: _Rank) -> None:
    """As many traces as the reader has room for."""
    left = _MAX_AT_ONCE
    while rank.waiting and left > 0:
        steps = rank.waiting.popleft()
        left -= len(steps.stages)
        _write(rank, steps)


def _write(rank: _Rank, steps: RankSteps) -> None:
    """On the monotonic clock of this host; the step after it begins where it ends."""
    apart_ns = time.time_ns() - time.monotonic_ns()
    emit, number = rank.segment.emit, steps.step
    step = NO_STEP if number is None else number
    if number is not None and rank.step != number:
        begin = max(1, steps.begin_ns - apart_ns)
        emit(begin, begin, 0.0, number, 0, 0, 0, STEP, 0)
    for stage in steps.stages[:_MAX_AT_ONCE]:
        _write_stage(rank, stage, step, apart_ns)
    rank.num_spans += len(steps.stages)
    if number is not None:
        end = max(1, steps.end_ns - apart_ns)
        emit(end, end, 0.0, number + 1, 0, 0, 0, STEP, 0)
        rank.step = number + 1
    rank.segment.add_clock_pair()


def _write_stage(rank: _Rank, stage: Stage, step: int, apart_ns: int) -> None:
    name = rank.names.get(stage.name)
    if name is None:
        name = rank.names[stage.name] = rank.segment.add_name(stage.name)
    span, parent = rank.num_spans + stage.number, stage.parent and rank.num_spans + stage.parent
    begin, end = max(1, stage.begin_ns - apart_ns), max(1, stage.end_ns - apart_ns)
    rank.segment.emit(begin, end, 0.0, step, span & 0xFFFFFFFF, parent & 0xFFFFFFFF, 0, STAGE, name)
