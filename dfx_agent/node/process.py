"""What one process' records say: spans into the time account, the rest into plain state."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite

from dfx_agent.facts.processor import SchedTimes
from dfx_agent.facts.scalars import ScalarRecord
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.facts.steps import GroupTime
from dfx_agent.node.device_stages import DeviceStages
from dfx_agent.node.event_loop import LoopAccount
from dfx_agent.node.host.processor_time import ProcessorTimes
from dfx_agent.node.memory.use import ProcessMemory
from dfx_agent.node.segments.reader import Batch, Follower, Liveness
from dfx_agent.node.segments.records import (
    MOST,
    Collective,
    DeviceTime,
    Group,
    LedgerRecord,
    LoopHeld,
    LoopLag,
    SixFields,
    wide_record,
)
from dfx_agent.node.thread_moves import ThreadMoves
from dfx_agent.node.time.account import SpanEvent, Split, TimeAccount, Window, as_accounted
from dfx_agent.node.time.counts import StepCounts, as_told
from dfx_agent.node.time.span_book import SpanBook
from dfx_agent.node.time.stamps import Stamp, Stamps
from dfx_agent.node.time.sweep import Row
from dfx_agent.node.time.totals import CollectiveCounts, KeptTotals, Totals, num_up_to
from dfx_agent.node.time.work import ClosedWork, WorkAccount
from dfx_agent.wire.records import (
    COLLECTIVES,
    COUNT,
    COUNTED,
    DEVICE_TIME,
    FROM_ATTACH,
    GAUGE,
    GROUP,
    KIND_MASK,
    LEDGER,
    LOOP_KINDS,
    NO_STEP,
    POLICY_VERSION,
    QUEUE,
    RECORD,
    SCALAR,
    SPAN_FIELDS,
    STAGE,
    STEP,
    TOKENS,
    WAIT,
)

_KEEP_WINDOWS = 64
_KEEP_PIECES = 4096
_LOOK_EVERY_NS = 2 * 10**9
_FUTURE_NS = 10 * 10**9
_versions = itertools.count()
_WIDE = COLLECTIVES | LOOP_KINDS | {DEVICE_TIME, LEDGER}  # kinds that use every field of a record


@dataclass
class ClosedStep:
    """A step this process has passed."""

    window: Window
    tokens: dict[str, float] = field(default_factory=dict)
    num_forward_tokens: float | None = None
    busy_seconds: float | None = None  # CPU time of its thread
    num_samples: float | None = None  # rows of forward passes for training
    processor: SchedTimes | None = None  # the same by the kernel, and how long it waited for a CPU
    groups: Mapping[str, GroupTime] = field(default_factory=dict)
    work: ClosedWork | None = None


class Process:
    """One training process, from its first record to its end."""

    # the first so many of collectives and device_times an earlier agent counted, with this result
    num_counted = 0, 0
    earlier_collectives: tuple[CollectiveCounts, ...] = ()

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.attempt = follower.identity.attempt
        self.label = ""
        self.filed_as = follower.identity
        self.state: Liveness = "live"
        self.looked_ns = self.lived_ns = 0  # when we looked whether it lives; the same, and it did
        self.account: TimeAccount | None = None
        self._num_earlier = self.num_strange = self.step_flags = 0
        self.windows: deque[ClosedStep] = deque(maxlen=_KEEP_WINDOWS)
        self.tokens, self.queues = dict[str, float](), dict[str, float]()
        self.policy_version: int | None = None
        # by the newest record; ``step`` is one reading behind
        self.told_step: int | None = None
        self.scalars: dict[str, ScalarRecord] = {}
        self.scalars_version = next(_versions)  # another one, of no other process, when one came
        self.inflight: list[SpanEvent] = []
        self._stamps = Stamps()
        self.ring_share = 1.0  # of its ring that the last reading brought
        self.last_event_ns: int | None = None
        self._step_counts, self._work = StepCounts(), WorkAccount()
        self._processor = ProcessorTimes()
        # of the newest reading, and of the one before; the first reading without news accounts yet
        self._before_ns = self._due_ns = self._next_look_ns = 0
        self._is_settled = False
        self.num_readings_with_news = 0
        self._carried = Totals()
        self._kept: KeptTotals | None = None
        self.counters, self.gauges = dict[str, float](), dict[str, float]()
        self.groups: dict[str, Group] = {}
        self.collectives: list[Collective] = []  # of the last reading
        self.device_times: list[DeviceTime] = []  # of the last reading
        self.ledger: list[LedgerRecord] = []  # of the last reading
        self._spans = SpanBook()
        self.memory, self.devices = ProcessMemory(), DeviceStages()
        self.thread_moves = ThreadMoves()
        self.loop = LoopAccount()

    @property
    def is_misfiled(self) -> bool:
        """Preloaded, it was seen as its environment said; then its own code called init."""
        was, now = self.filed_as, self.follower.identity
        return (was.run, was.role, was.rank) != (now.run, now.role, now.rank)

    @property
    def is_living(self) -> bool:
        return self.state in ("live", "unknown")

    @property
    def id(self) -> ProcessId:
        """Which process it is, of those that had or have its place."""
        created_ns = self.follower.preamble.created_epoch_ns
        return ProcessId(self.filed_as.role, self.label, created_ns)

    @property
    def seat(self) -> Seat:
        """Its place in the job, as it is filed."""
        known = self.filed_as
        return Seat(
            role=known.role, label=self.label, rank=known.rank, local_rank=known.local_rank,
            world_size=known.world_size, node=known.host, attempt=self.attempt, state=self.state,
            pid=self.pid, created_ns=self.follower.preamble.created_epoch_ns,
            num_lost_records=self.follower.num_lost,
            counts_from_attach=bool(self.step_flags & FROM_ATTACH),
            is_late=self.follower.is_told_late,
        )  # fmt: skip

    @property
    def stamps(self) -> Mapping[tuple[str, int], Stamp]:
        """(stage, slot) -> when it last began and ended; see Stamps."""
        return self._stamps.by_slot

    @property
    def step(self) -> int | None:
        """The step it is in; None before the first ``set_step``."""
        return self.account.current.step if self.account else None

    def liveness(self) -> Liveness:
        """Asked now; when is remembered."""
        self.looked_ns = time.monotonic_ns()
        state = self.follower.liveness()
        if state in ("live", "unknown"):
            self.lived_ns = self.looked_ns
        return state

    def follower_lives(self) -> bool:
        """Asked now, not at the last reading: a successor may appear before the death is seen."""
        return self.is_living and self.liveness() in ("live", "unknown")

    def is_there(self) -> bool:
        """Asked now: whether it lives, or has closed its segment and is still ending."""
        return self.follower_lives() or (self.state == "exited" and self.follower.still_runs())

    def became(self, other: Process) -> bool:
        """Whether ``other`` is this very process after an exec, which closes no segment."""
        mine, its = self.follower.preamble, other.follower.preamble
        same = (mine.boot_id, mine.pid_namespace, mine.pid, mine.start_ticks)
        return same == (its.boot_id, its.pid_namespace, its.pid, its.start_ticks)

    def totals(self) -> Totals:
        """Everything since the rank was first seen, earlier attempts included."""
        self.catch_up()
        account, follower = self.account, self.follower
        totals = Totals(
            account.totals() if account else Split(),
            as_told(self.tokens),
            dict(self.counters),
            follower.num_read,
            follower.num_lost - self._num_earlier,
            self.num_strange + (account.num_late + account.num_vanished if account else 0),
            follower.num_guest_drops,
            self._num_earlier,
        )
        totals.merge(self._carried)
        return totals

    def succeed(self, other: Process) -> None:
        """Take over the place of a process that is gone: counters of the rank go on."""
        self.label = other.label
        self.go_on(other.attempt, other.totals())

    def go_on(self, attempt: int, totals: Totals) -> None:
        """What was known of the rank before."""
        self.attempt = max(self.attempt, attempt + 1)
        self._carried = totals

    def resume(self, kept: KeptTotals) -> None:
        """Go on from what another agent knew, once our first reading has come as far as it did."""
        self._kept, self.earlier_collectives = kept, kept.collectives

    def to_keep(self, collectives: tuple[CollectiveCounts, ...]) -> KeptTotals | None:
        """For the next agent, with those of its rank; None before the first reading."""
        if self.account is None or self._kept is not None:
            return self._kept
        totals = self.totals()
        totals.num_guest_drops = self._carried.num_guest_drops  # the segment itself knows its own
        return KeptTotals(self.follower.position, self.account.watermark_ns, totals, collectives)

    def poll(self, *, is_last: bool = False) -> tuple[list[ScalarRecord], list[ClosedStep]]:
        """Read what is new: (scalars, steps this process has passed since the last call)."""
        if self._is_settled and not is_last and self.follower.is_quiet():
            self._stand_still(time.monotonic_ns())
            return [], []
        kept, self._kept, self.num_counted = self._kept, None, (0, 0)
        batch = self.follower.poll(is_last=is_last, up_to=kept.position if kept else 0)
        if self.account is None and kept is None:
            self._num_earlier = self.follower.num_overwritten
        self.ring_share = len(batch.packed) / (RECORD.size * self.follower.preamble.num_records)
        if kept is None:
            scalars = self._take(batch)
            account = self._account(batch)
            account.note_open(map(as_accounted, self.inflight))
        else:
            scalars = self._take_again(batch, kept)
            account = self._account(batch)
        self.devices.advance(account, self._before_ns)  # spans begun before that are known
        self._due_ns, self._before_ns = self._before_ns, batch.time_ns
        self._is_settled = not batch.packed
        self.num_readings_with_news += 1
        if self.state == "live":
            self._processor.look(batch.time_ns, self.pid, self._training_thread())
        closed = self._closed_steps(account)
        if self.state == "live":  # else the pid may be somebody else's, or of another namespace
            self._sample_memory(batch.time_ns, closed)
        return scalars, closed

    def _stand_still(self, now_ns: int) -> None:
        """A reading without news: time goes on, and is accounted when somebody asks for it."""
        self._due_ns, self._before_ns = self._before_ns, now_ns
        if self.collectives or self.device_times or self.ledger:
            self.collectives, self.device_times, self.ledger = [], [], []
        self.ring_share = 0.0
        if self.state == "live":
            if now_ns >= self._next_look_ns:
                self._next_look_ns = now_ns + _LOOK_EVERY_NS
                self._processor.look(now_ns, self.pid, self._training_thread())
            self.memory.sample(now_ns, self.pid, None, self.inflight, is_step_over=False)

    def catch_up(self) -> None:
        """Account the time of readings without news: up to one reading ago, as ever."""
        if self.account is not None:
            self.devices.advance(self.account, self._due_ns)

    def _take_again(self, batch: Batch, kept: KeptTotals) -> list[ScalarRecord]:
        """Our first reading, of which another agent has counted all up to ``kept``.

        It is taken for what it tells of the newest steps; what it adds to the counters up to there
        is taken off again. Time is compared at one instant, counts at one record.
        """
        num_known = num_up_to(kept.position, batch.packed) * RECORD.size
        account = self._account(batch)  # begins at the oldest record
        scalars = self._take(replace(batch, packed=batch.packed[:num_known]))
        before = self.totals()
        before.num_records = num_known // RECORD.size
        before.num_lost = min(self.follower.num_lost, kept.position - before.num_records)
        of_reading = self.collectives, self.device_times, self.ledger
        scalars += self._take(replace(batch, packed=batch.packed[num_known:]))
        self.collectives[:0], self.device_times[:0], self.ledger[:0] = of_reading
        self.num_counted = len(of_reading[0]), len(of_reading[1])
        account.note_open(map(as_accounted, self.inflight))
        account.advance(min(kept.until_ns, batch.time_ns))
        before.split = account.totals()
        before.split.merge(self._carried.split)
        before.num_guest_drops = self._carried.num_guest_drops
        self._carried.merge(kept.totals)
        self._carried.merge(before, -1)
        return scalars

    def finish(self, state: Liveness) -> tuple[list[ScalarRecord], list[ClosedStep]]:
        """The process is gone: read to the end and close its account."""
        self.state = state
        scalars, closed = self.poll(is_last=True)
        self.follower.finish()
        account = self._account(Batch(self._before_ns, [], bytearray()))
        # a step that hooks count ends with its optimizer, or with an exception
        has_step = not self.step_flags & COUNTED or self.follower.failure is not None
        end_ns = self.last_event_ns or account.watermark_ns
        account.finish(end_ns, orderly=state == "exited", has_step=has_step)
        return scalars, closed + self._closed_steps(account)

    @property
    def pid(self) -> int:
        """As it is seen from here, where it is; else as it sees itself."""
        return self.follower.pid or self.follower.preamble.pid

    def _training_thread(self) -> int:
        """As it is seen from here: of other threads of a container only the inner id is known."""
        thread, is_outside = self._step_counts.thread, self.pid != self.follower.preamble.pid
        return thread if thread and not is_outside else self.pid

    def _sample_memory(self, now_ns: int, closed: list[ClosedStep]) -> None:
        step = closed[-1].window.step if closed else None
        self.memory.sample(now_ns, self.pid, step, self.inflight, is_step_over=bool(closed))
        self.memory.heap.look(now_ns, self.pid, self.gauges)
        if step is not None:
            self.memory.sample_devices(step, self.gauges)

    def _account(self, batch: Batch) -> TimeAccount:
        if self.account is None:
            begin = self.follower.begin_ns
            if self.follower.num_lost and batch.packed:
                begin = max(begin, SPAN_FIELDS.unpack_from(batch.packed)[0])
            self.account = TimeAccount(min(begin, batch.time_ns))
        return self.account

    def _take(self, batch: Batch) -> list[ScalarRecord]:
        account = self._account(batch)
        future, watermark = batch.time_ns + _FUTURE_NS, account.watermark_ns
        spans: dict[int, Row] = {}
        odd: dict[int, Row] = {}
        ended: defaultdict[str, list[Row]] = defaultdict(list)
        others: list[tuple[int, str]] = []  # where the record is, and its name
        names, name = self.follower.names, self.follower.name
        last, at = self.last_event_ns or 0, -RECORD.size
        stage, wait, size = STAGE, WAIT, RECORD.size  # a local name is faster
        for t0, t1, span, parent, flagged, name_id in SPAN_FIELDS.iter_unpack(batch.packed):
            at += size
            if (
                flagged <= wait
                and watermark <= t0 < t1 <= future
                and parent < span
                and flagged
                and name_id in names
            ):
                kind, text = flagged, names[name_id]
                row = spans[span] = (t0, span, t1, parent, kind, text)
            else:
                kind = flagged & KIND_MASK
                if t1 > future or t0 > t1 or not kind or (kind <= WAIT and not span):
                    self.num_strange += 1
                    continue
                text = names.get(name_id) or name(name_id)
                if kind <= WAIT:
                    row = odd[span] = (t0, span, t1, parent, kind, text)
                else:
                    others.append((at, text))
            if t1 > last:  # noqa: PLR1730 (max() costs as much as the rest of this line's work)
                last = t1
            if kind == stage:
                ended[text].append(row)
        account.add_new(spans)
        account.add(odd)
        for text, rows in self._work.noted(ended).items():
            self._stamps.end(text, rows)
        scalars = self._take_others(account, batch.packed, others)
        self.loop.take_spans(spans, odd)
        self._spans.note(spans, odd)
        self.last_event_ns = last or None
        self._note_inflight([e for e in batch.inflight if e.begin_ns <= future], batch.packed)
        return scalars

    def _take_others(
        self, account: TimeAccount, packed: bytearray, places: list[tuple[int, str]]
    ) -> list[ScalarRecord]:
        """Records that are no spans: (where, name), in their order; returns the scalars."""
        scalars: list[ScalarRecord] = []
        self.collectives, self.device_times, self.ledger = [], [], []
        unpack_from, tokens, told_step = RECORD.unpack_from, self.tokens, self.told_step
        for at, text in places:
            _, t0, t1, value, step, span, parent, thread, flagged, _, _ = unpack_from(packed, at)
            kind = flagged & KIND_MASK
            if kind == SCALAR:
                number = None if step == NO_STEP else step
                scalars.append(ScalarRecord(text, value, number, t0, told_step))
            elif kind == TOKENS and 0.0 <= value <= MOST:
                tokens[text] = tokens.get(text, 0.0) + value
                self._step_counts.add_tokens(step, text, value)
            elif kind == QUEUE and isfinite(value):
                self.queues[text] = value
            elif kind == STEP:
                account.begin_step(t0, step)
                self._step_counts.begin_step(step, thread, value)
                self.told_step = told_step = step
                self.step_flags = flagged & ~KIND_MASK
            elif kind in _WIDE:
                self._take_wide(flagged, text, (t0, t1, value, step, span, parent), thread)
            else:
                self._take_count(kind, text, value, step)
        if scalars:
            self.scalars |= {scalar[0]: scalar for scalar in scalars}
            self.scalars_version = next(_versions)
        return scalars

    def _note_inflight(self, events: list[SpanEvent], packed: bytearray) -> None:
        events = [event for event in events if event.span]
        self.inflight = events
        self.thread_moves.take(packed, events, self._step_counts.thread)
        for event in events:
            self._spans.note_open(event)
            if event.kind == STAGE:
                self._stamps.begin(event.span, event.name, event.begin_ns)

    def _take_wide(self, flagged: int, text: str, fields: SixFields, thread: int) -> None:
        told = wide_record(flagged, text, fields, thread)
        if told is None:
            self.num_strange += 1
        elif isinstance(told, LedgerRecord):
            self.ledger.append(told)
        elif isinstance(told, DeviceTime):
            self.device_times.append(told)
        elif isinstance(told, LoopLag):
            self.loop.take_lag(told)
        elif isinstance(told, LoopHeld):
            self.loop.take_held(told)
        else:
            self.thread_moves.note_collective(told, thread)
            self._note_collective(told)

    def _note_collective(self, told: Collective) -> None:
        if told.num_bytes < 0:
            self.num_strange += 1
            told = told._replace(num_bytes=0.0)
        self.collectives.append(told)
        if told.span and (told.is_blocking or told.is_wait) and self.account:
            row = told.begin_ns, told.span, told.end_ns, told.parent, WAIT, "collective"
            self.account.add({told.span: row})

    def stage_of(self, parent: int) -> str:
        """The innermost stage around a span; "" when there was none or it is not known any more."""
        return self._spans.stage_of(parent)

    def _take_group(self, name: str, enqueued: int, completed: float) -> None:
        known = self.groups.get(name)
        num_completed = int(completed) if completed >= 0 else None
        if known is None or enqueued < known.num_enqueued:
            self.groups[name] = Group(enqueued, enqueued, num_completed)
        else:
            known.num_enqueued, known.num_completed = enqueued, num_completed

    def _take_count(self, kind: int, name: str, value: float, step: int) -> None:
        if not isfinite(value):
            self.num_strange += 1
        elif kind == POLICY_VERSION:
            self.policy_version = int(value)
        elif kind == COUNT and not 0.0 <= value <= MOST:
            self.num_strange += 1
        elif kind == COUNT:
            self.counters[name] = self.counters.get(name, 0.0) + value
            self._work.add(name, value, step)
            self._step_counts.add_count(step, name, value)
        elif kind == GAUGE:
            self.gauges[name] = value
        elif kind == GROUP:
            self._take_group(name, step, value)
        else:
            self.num_strange += 1

    def _closed_steps(self, account: TimeAccount) -> list[ClosedStep]:
        closed = []
        for window in account.finished:
            self._stamps.end_step(window)
            if window.step is not None:
                counts = self._step_counts.take(window.step)
                end_ns = window.begin_ns if window.end_ns is None else window.end_ns
                had = self._processor.between(window.begin_ns, end_ns)
                work = self._work.take(window.step, window.begin_ns, end_ns)
                closed.append(ClosedStep(window, *counts, had, work=work))
        account.finished.clear()
        self.windows.extend(closed)
        if closed:
            self._bound_pieces()
        return closed

    def _bound_pieces(self) -> None:
        total = sum(len(step.window.first_pieces) for step in self.windows)
        while total > _KEEP_PIECES and len(self.windows) > 1:
            total -= len(self.windows.popleft().window.first_pieces)
