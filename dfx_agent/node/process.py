"""One training process as the agent sees it: decodes its records and stores the resulting state.

Spans go to the time account. Other records become plain attributes: counters, gauges, scalars.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from dfx_agent.facts.scalars import ScalarRecord
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.node.device_stages import DeviceStages
from dfx_agent.node.event_loop import LoopAccount
from dfx_agent.node.host.processor_time import ProcessorTimes
from dfx_agent.node.memory import ProcessMemory
from dfx_agent.node.segments.reader import Follower, Liveness, RecordBatch
from dfx_agent.node.segments.records import (
    MOST,
    Collective,
    DeviceTime,
    GroupCounts,
    LedgerRecord,
    LoopHeld,
    LoopLag,
    SixFields,
    wide_record,
)
from dfx_agent.node.thread_moves import ThreadMoves
from dfx_agent.node.time.account import SpanEvent, Split, TimeAccount, as_accounted
from dfx_agent.node.time.closed_step import ClosedStep, StepCounts, count_failure, reported_tokens
from dfx_agent.node.time.span_book import SpanBook
from dfx_agent.node.time.stamps import Stamp, Stamps
from dfx_agent.node.time.sweep import Row
from dfx_agent.node.time.totals import CollectiveCounts, StoredTotals, Totals, num_up_to
from dfx_agent.node.time.work import WorkAccount
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


class Process:
    """One training process, from its first record to its exit."""

    # how many of `collectives` and `device_times` an earlier agent has counted already
    num_counted = 0, 0
    earlier_collectives: tuple[CollectiveCounts, ...] = ()

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.attempt = follower.identity.attempt
        self.label = ""
        self.registered_as = follower.identity
        self._seat: tuple[tuple[object, ...], Seat] | None = None  # and what it was made from
        self.state: Liveness = "live"
        # last liveness check; last check that found it alive
        self.liveness_checked_ns = self.last_alive_ns = 0
        self.account: TimeAccount | None = None
        self._num_earlier = self.num_strange = self.step_flags = 0
        self.windows: deque[ClosedStep] = deque(maxlen=_KEEP_WINDOWS)
        self.tokens, self.queues = dict[str, float](), dict[str, float]()
        self.policy_version: int | None = None
        # step of the latest record; ``step`` is one poll behind
        self.latest_step: int | None = None
        self.scalars: dict[str, ScalarRecord] = {}
        # changes with every new scalar; no two processes ever share a version
        self.scalars_version = next(_versions)
        self.inflight: list[SpanEvent] = []
        self._stamps = Stamps()
        self.ring_share = 1.0  # how much of the ring the last poll filled, 0 to 1
        self.last_event_ns: int | None = None
        self._step_counts, self._work = StepCounts(), WorkAccount()
        self._processor = ProcessorTimes()
        # time of the latest poll and of the one before, which is accounted up to now
        self._before_ns = self._due_ns = self._next_look_ns = 0
        self._is_settled = False
        self.num_polls_with_records = 0
        self._carried = Totals()
        self._stored: StoredTotals | None = None
        self.counters, self.gauges = dict[str, float](), dict[str, float]()
        self.groups: dict[str, GroupCounts] = {}
        self.collectives: list[Collective] = []  # of the last poll
        self.device_times: list[DeviceTime] = []  # of the last poll
        self.ledger: list[LedgerRecord] = []  # of the last poll
        self._spans = SpanBook()
        self.memory, self.devices = ProcessMemory(), DeviceStages()
        self.thread_moves = ThreadMoves()
        self.loop = LoopAccount()

    @property
    def has_new_identity(self) -> bool:
        """Whether init() changed run, role or rank after the agent had registered the process."""
        was, now = self.registered_as, self.follower.identity
        return (was.run, was.role, was.rank) != (now.run, now.role, now.rank)

    @property
    def is_living(self) -> bool:
        """Whether the last poll found the process running; "unknown" counts as running."""
        return self.state in ("live", "unknown")

    @property
    def id(self) -> ProcessId:
        """Identifies this process among all processes that had the same role and label."""
        created_ns = self.follower.preamble.created_epoch_ns
        return ProcessId(self.registered_as.role, self.label, created_ns)

    @property
    def seat(self) -> Seat:
        """Where this process belongs in the job; the same object until something changes."""
        lost, flags = self.follower.num_lost, self.step_flags
        state = self.registered_as, self.label, self.attempt, self.state, self.pid, lost, flags
        if self._seat is None or self._seat[0] != state:
            self._seat = state, self._new_seat()
        return self._seat[1]

    def _new_seat(self) -> Seat:
        identity = self.registered_as
        return Seat(
            role=identity.role, label=self.label, rank=identity.rank,
            local_rank=identity.local_rank, world_size=identity.world_size, node=identity.host,
            attempt=self.attempt, state=self.state, pid=self.pid,
            created_ns=self.follower.preamble.created_epoch_ns,
            num_lost_records=self.follower.num_lost,
            counts_from_attach=bool(self.step_flags & FROM_ATTACH),
            is_late=self.follower.is_written_by_agent,
        )  # fmt: skip

    @property
    def stamps(self) -> Mapping[tuple[str, int], Stamp]:
        """(stage, slot) -> when the stage last began and ended; see Stamps."""
        return self._stamps.by_slot

    @property
    def step(self) -> int | None:
        """The current step; None before the first ``set_step``."""
        return self.account.current.step if self.account else None

    def liveness(self) -> Liveness:
        """Check now whether it is alive, and store the time of the check."""
        self.liveness_checked_ns = time.monotonic_ns()
        state = self.follower.liveness()
        if state in ("live", "unknown"):
            self.last_alive_ns = self.liveness_checked_ns
        return state

    def is_alive_now(self) -> bool:
        """Check now whether it is alive; a successor may appear before the next poll."""
        return self.is_living and self.liveness() in ("live", "unknown")

    def is_alive_or_exiting(self) -> bool:
        """Check now whether it is alive, or is still exiting after it closed its segment."""
        return self.is_alive_now() or (self.state == "exited" and self.follower.still_runs())

    def is_same_process(self, other: Process) -> bool:
        """Whether ``other`` is the same OS process after an exec, which closes no segment."""
        mine, its = self.follower.preamble, other.follower.preamble
        same = (mine.boot_id, mine.pid_namespace, mine.pid, mine.start_ticks)
        return same == (its.boot_id, its.pid_namespace, its.pid, its.start_ticks)

    def totals(self) -> Totals:
        """Counters since the rank was first seen, including earlier attempts."""
        self.catch_up()
        account, follower = self.account, self.follower
        totals = Totals(
            account.totals() if account else Split(),
            reported_tokens(self.tokens),
            dict(self.counters),
            follower.num_read,
            follower.num_lost - self._num_earlier,
            self.num_strange + (account.num_late + account.num_vanished if account else 0),
            follower.num_guest_drops,
            self._num_earlier,
        )
        totals.merge(self._carried)
        return totals

    def replace_process(self, other: Process) -> None:
        """Replace an exited process of the same rank, and continue its counters."""
        self.label = other.label
        self.continue_from(other.attempt, other.totals())

    def continue_from(self, attempt: int, totals: Totals) -> None:
        """Continue the counters of an earlier attempt of this rank."""
        self.attempt = max(self.attempt, attempt + 1)
        self._carried = totals

    def resume(self, stored: StoredTotals) -> None:
        """Continue from the totals of an earlier agent; they apply at the first poll."""
        self._stored, self.earlier_collectives = stored, stored.collectives

    def stored_totals(self, collectives: tuple[CollectiveCounts, ...]) -> StoredTotals | None:
        """Totals for the next agent; None before the first poll."""
        if self.account is None or self._stored is not None:
            return self._stored
        totals = self.totals()
        totals.num_guest_drops = self._carried.num_guest_drops  # the segment stores the rest
        return StoredTotals(self.follower.position, self.account.watermark_ns, totals, collectives)

    def poll(self, *, is_last: bool = False) -> tuple[list[ScalarRecord], list[ClosedStep]]:
        """Read new records. Returns (scalars, steps finished since the last poll)."""
        if self._is_settled and not is_last and self.follower.is_quiet():
            self._skip_poll(time.monotonic_ns())
            return [], []
        stored, self._stored, self.num_counted = self._stored, None, (0, 0)
        batch = self.follower.poll(is_last=is_last, up_to=stored.position if stored else 0)
        if self.account is None and stored is None:
            self._num_earlier = self.follower.num_overwritten
        self.ring_share = len(batch.packed) / (RECORD.size * self.follower.preamble.num_records)
        if stored is None:
            scalars = self._read_batch(batch)
            account = self._account(batch)
            account.note_open(map(as_accounted, self.inflight))
        else:
            scalars = self._read_again(batch, stored)
            account = self._account(batch)
        self.devices.advance(account, self._before_ns)  # all spans that began earlier are read
        self._due_ns, self._before_ns = self._before_ns, batch.time_ns
        self._is_settled = not batch.packed
        self.num_polls_with_records += 1
        if self.state == "live":
            self._processor.look(batch.time_ns, self.pid, self._training_thread())
        closed = self._closed_steps(account)
        if self.state == "live":  # else the pid may belong to another process or namespace
            self._sample_memory(batch.time_ns, closed)
        return scalars, closed

    def _skip_poll(self, now_ns: int) -> None:
        """Handle a poll without new records; the elapsed time is accounted when it is needed."""
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
        """Account time that polls without new records have skipped, up to the previous poll."""
        if self.account is not None:
            self.devices.advance(self.account, self._due_ns)

    def _read_again(self, batch: RecordBatch, stored: StoredTotals) -> list[ScalarRecord]:
        """First poll after another agent has read this process up to ``stored.position``.

        Records up to that position are read again, because the latest steps need them. Their
        contribution to the counters is subtracted: by time for durations, by record for counts.
        """
        num_known = num_up_to(stored.position, batch.packed) * RECORD.size
        account = self._account(batch)  # begins at the oldest record
        scalars = self._read_batch(replace(batch, packed=batch.packed[:num_known]))
        before = self.totals()
        before.num_records = num_known // RECORD.size
        before.num_lost = min(self.follower.num_lost, stored.position - before.num_records)
        earlier = self.collectives, self.device_times, self.ledger
        scalars += self._read_batch(replace(batch, packed=batch.packed[num_known:]))
        self.collectives[:0], self.device_times[:0], self.ledger[:0] = earlier
        self.num_counted = len(earlier[0]), len(earlier[1])
        account.note_open(map(as_accounted, self.inflight))
        account.advance(min(stored.until_ns, batch.time_ns))
        before.split = account.totals()
        before.split.merge(self._carried.split)
        before.num_guest_drops = self._carried.num_guest_drops
        self._carried.merge(stored.totals)
        self._carried.merge(before, -1)
        return scalars

    def finish(self, state: Liveness) -> tuple[list[ScalarRecord], list[ClosedStep]]:
        """The process has exited: read its last records and close the time account."""
        self.state = state
        scalars, closed = self.poll(is_last=True)
        self.follower.finish()
        account = self._account(RecordBatch(self._before_ns, [], bytearray()))
        # a step counted by hooks ends with its optimizer step, or with an exception
        has_step = not self.step_flags & COUNTED or self.follower.failure is not None
        end_ns = self.last_event_ns or account.watermark_ns
        account.finish(end_ns, orderly=state == "exited", has_step=has_step)
        return scalars, closed + self._closed_steps(account)

    @property
    def pid(self) -> int:
        """The pid in this namespace if it is visible, else the pid that the process sees."""
        return self.follower.pid or self.follower.preamble.pid

    def _training_thread(self) -> int:
        """Thread id in this namespace; of a container only the main thread's id is known here."""
        thread, is_outside = self._step_counts.thread, self.pid != self.follower.preamble.pid
        return thread if thread and not is_outside else self.pid

    def _sample_memory(self, now_ns: int, closed: list[ClosedStep]) -> None:
        step = closed[-1].window.step if closed else None
        self.memory.sample(now_ns, self.pid, step, self.inflight, is_step_over=bool(closed))
        self.memory.heap.look(now_ns, self.pid, self.gauges)
        if step is not None:
            self.memory.sample_devices(step, self.gauges)

    def _account(self, batch: RecordBatch) -> TimeAccount:
        if self.account is None:
            begin = self.follower.begin_ns
            if self.follower.num_lost and batch.packed:
                begin = max(begin, SPAN_FIELDS.unpack_from(batch.packed)[0])
            self.account = TimeAccount(min(begin, batch.time_ns))
        return self.account

    def _read_batch(self, batch: RecordBatch) -> list[ScalarRecord]:
        account = self._account(batch)
        future, watermark = batch.time_ns + _FUTURE_NS, account.watermark_ns
        spans, odd = dict[int, Row](), dict[int, Row]()
        ended: defaultdict[str, list[Row]] = defaultdict(list)
        others: list[tuple[int, str]] = []  # offset of the record, and its name
        names, name, last = self.follower.names, self.follower.name, self.last_event_ns or 0
        stage, wait, size, at = STAGE, WAIT, RECORD.size, -RECORD.size  # local names are faster
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
                    count_failure(self.counters, flagged, text)
                else:
                    others.append((at, text))
            if t1 > last:  # noqa: PLR1730 (max() costs as much as the rest of this line's work)
                last = t1
            if kind == stage:
                ended[text].append(row)
        account.add_new(spans)
        account.add(odd)
        self._work.note_stages(ended)
        for text, rows in ended.items():
            self._stamps.end(text, rows)
        scalars = self._read_others(account, batch.packed, others)
        self.loop.add_spans(spans, odd)
        self._spans.note(spans, odd)
        self.last_event_ns = last or None
        self._note_inflight([e for e in batch.inflight if e.begin_ns <= future], batch.packed)
        return scalars

    def _read_others(
        self, account: TimeAccount, packed: bytearray, places: list[tuple[int, str]]
    ) -> list[ScalarRecord]:
        """Read records that are no spans, given as (offset, name). Returns the scalars."""
        scalars: list[ScalarRecord] = []
        self.collectives, self.device_times, self.ledger = [], [], []
        unpack_from, tokens, latest_step = RECORD.unpack_from, self.tokens, self.latest_step
        for at, text in places:
            _, t0, t1, value, step, span, parent, thread, flagged, _, _ = unpack_from(packed, at)
            kind = flagged & KIND_MASK
            if kind == SCALAR:
                number = None if step == NO_STEP else step
                scalars.append(ScalarRecord(text, value, number, t0, latest_step))
            elif kind == TOKENS and 0.0 <= value <= MOST:
                tokens[text] = tokens.get(text, 0.0) + value
                self._step_counts.add_tokens(step, text, value)
            elif kind == QUEUE and isfinite(value):
                self.queues[text] = value
            elif kind == STEP:
                account.begin_step(t0, step)
                self._step_counts.begin_step(step, thread, value)
                self.latest_step = latest_step = step
                self.step_flags = flagged & ~KIND_MASK
            elif kind in _WIDE:
                self._read_wide(flagged, text, (t0, t1, value, step, span, parent), thread)
            else:
                self._read_count(kind, text, value, step)
        if scalars:
            self.scalars |= {scalar[0]: scalar for scalar in scalars}
            self.scalars_version = next(_versions)
        return scalars

    def _note_inflight(self, events: list[SpanEvent], packed: bytearray) -> None:
        events = [event for event in events if event.span]
        self.inflight = events
        self.thread_moves.read_records(packed, events, self._step_counts.thread)
        for event in events:
            self._spans.note_open(event)
            if event.kind == STAGE:
                self._stamps.begin(event.span, event.name, event.begin_ns)

    def _read_wide(self, flagged: int, text: str, fields: SixFields, thread: int) -> None:
        record = wide_record(flagged, text, fields, thread)
        if record is None:
            self.num_strange += 1
        elif isinstance(record, LedgerRecord):
            self.ledger.append(record)
        elif isinstance(record, DeviceTime):
            self.device_times.append(record)
        elif isinstance(record, LoopLag):
            self.loop.add_lag(record)
        elif isinstance(record, LoopHeld):
            self.loop.add_held(record)
        else:
            self.thread_moves.note_collective(record, thread)
            self._note_collective(record)

    def _note_collective(self, record: Collective) -> None:
        if record.num_bytes < 0:
            self.num_strange += 1
            record = record._replace(num_bytes=0.0)
        self.collectives.append(record)
        if record.span and (record.is_blocking or record.is_wait) and self.account:
            row = record.begin_ns, record.span, record.end_ns, record.parent, WAIT, "collective"
            self.account.add({record.span: row})

    def stage_of(self, parent: int) -> str:
        """The innermost stage around a span; "" if there is none or it is no longer stored."""
        return self._spans.stage_of(parent)

    def _update_group(self, name: str, enqueued: int, completed: float) -> None:
        group = self.groups.get(name)
        num_completed = int(completed) if completed >= 0 else None
        if group is None or enqueued < group.num_enqueued:
            self.groups[name] = GroupCounts(enqueued, enqueued, num_completed)
        else:
            group.num_enqueued, group.num_completed = enqueued, num_completed

    def _read_count(self, kind: int, name: str, value: float, step: int) -> None:
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
            self._update_group(name, step, value)
        else:
            self.num_strange += 1

    def _closed_steps(self, account: TimeAccount) -> list[ClosedStep]:
        closed = []
        for window in account.finished:
            self._stamps.end_step(window)
            if window.step is not None:
                counts = self._step_counts.pop(window.step)
                end_ns = window.begin_ns if window.end_ns is None else window.end_ns
                had = self._processor.between(window.begin_ns, end_ns)
                work = self._work.pop(window.step, window.begin_ns, end_ns)
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
