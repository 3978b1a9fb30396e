"""Time accounting against an oracle that goes through every elementary interval by definition."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dfx_agent.node.time import account as accounting
from dfx_agent.node.time import pieces
from dfx_agent.node.time.account import SpanEvent, Split, StepInterval, TimeAccount
from dfx_agent.wire.records import STAGE, WAIT

STAGES = ["rollout", "reward", "actor_update"]
WAITS = ["barrier", "queue"]
SLOW = settings(max_examples=150, deadline=None)


@dataclass
class Span:
    span: int
    parent: int
    kind: int
    name: str
    begin: int
    end: int


@dataclass
class Trace:
    """What a process did: spans and step marks between ``begin`` and ``end``."""

    begin: int
    end: int
    spans: list[Span] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Context:
    """One thread or task: its open spans, innermost last."""

    open: list[Span] = field(default_factory=list)


@st.composite
def traces(draw, most_contexts: int = 5) -> Trace:
    """Threads and tasks that open and close nested spans; a task starts below its maker's span."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    now = begin = rng.randrange(1000)
    trace, contexts, step = Trace(begin, begin), [Context()], 0
    inherited: dict[int, int] = {0: 0}
    for _ in range(draw(st.integers(0, 40))):
        now += rng.choice([0, 1, 1, 2, 5, 17])
        index = rng.randrange(len(contexts))
        context = contexts[index]
        action = rng.random()
        if action < 0.45:
            parent = context.open[-1].span if context.open else inherited[index]
            kind = rng.choice([STAGE, STAGE, WAIT])
            name = rng.choice(STAGES if kind == STAGE else WAITS)
            span = Span(len(trace.spans) + 1, parent, kind, name, now, -1)
            trace.spans.append(span)
            context.open.append(span)
        elif action < 0.8 and context.open:
            context.open.pop().end = now
        elif action < 0.88 and len(contexts) < most_contexts:
            inherited[len(contexts)] = context.open[-1].span if context.open else 0
            contexts.append(Context())
        elif action > 0.92:
            step += 1
            now += 1
            trace.steps.append((now, step))
    trace.end = now + 3
    for span in trace.spans:
        if span.end < 0:
            span.end = trace.end if rng.random() < 0.5 else trace.end + 5
    return trace


@dataclass
class Oracle:
    active: int = 0
    idle: int = 0
    stages: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waits: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))


def oracle(trace: Trace, begin: int, end: int) -> Oracle:
    """The docstring's definition, interval by interval, nothing remembered in between."""
    result = Oracle()
    times = {begin, end}
    times.update(t for s in trace.spans for t in (s.begin, s.end) if begin < t < end)
    ordered = sorted(times)
    for left, right in pairwise(ordered):
        is_open = {s.span: s for s in trace.spans if s.begin <= left and s.end >= right}
        leaves = [s for s in is_open.values() if all(c.parent != s.span for c in is_open.values())]
        stages = {s.name for s in leaves if s.kind == STAGE}
        length = right - left
        if stages:
            result.active += length
            for name in stages:
                result.stages[name] += length
        elif leaves:
            last = max(leaves, key=lambda s: s.span)
            above = is_open.get(last.parent)
            while above is not None and above.kind != STAGE:
                above = is_open.get(above.parent)
            result.waits[last.name, above.name if above else ""] += length
        else:
            result.idle += length
    return result


def same(split: Split, expected: Oracle) -> None:
    assert {k: v for k, v in split.stages_ns.items() if v} == dict(expected.stages)
    assert {k: v for k, v in split.waits_ns.items() if v} == dict(expected.waits)
    assert (split.active_ns, split.idle_ns) == (expected.active, expected.idle)


def wall(split: Split) -> int:
    return split.active_ns + split.idle_ns + sum(split.waits_ns.values())


def as_open(span: Span) -> SpanEvent:
    return SpanEvent(span.span, span.parent, span.kind, span.name, span.begin, None)


def add(
    account: TimeAccount, span: int, parent: int, kind: int, name: str, begin_ns: int, end_ns: int
) -> None:
    account.add({span: (begin_ns, span, end_ns, parent, kind, name)})


def replay(trace: Trace, polls: list[int], *, inflight: bool = True) -> TimeAccount:
    """Feed a trace as the agent would: records that are new, what is open, advance to the last."""
    account = TimeAccount(trace.begin)
    before = previous = trace.begin - 1
    for now in [*sorted(polls), trace.end + 10, trace.end + 20]:
        fresh = [s for s in trace.spans if previous < s.end <= now and s.end <= trace.end]
        for span in sorted(fresh, key=lambda s: (s.end, -s.span)):  # children are written first
            add(account, span.span, span.parent, span.kind, span.name, span.begin, span.end)
        for time_ns, step in trace.steps:
            if previous < time_ns <= now:
                account.begin_step(time_ns, step)
        opened = [s for s in trace.spans if s.begin <= now < s.end or s.end > trace.end >= s.begin]
        account.note_open([as_open(s) for s in opened if s.begin <= now] if inflight else [])
        account.advance(min(before, trace.end))
        previous, before = now, now
    return account


def windows_of(account: TimeAccount) -> list[StepInterval]:
    return [*account.finished, account.current]


@SLOW
@given(traces(), st.lists(st.integers(0, 1500), max_size=20))
def test_totals_equal_the_oracle_however_polls_are_spaced(trace, polls):
    account = replay(trace, polls)
    assert account.watermark_ns == trace.end
    same(account.totals(), oracle(trace, trace.begin, trace.end))
    assert wall(account.totals()) == trace.end - trace.begin
    assert (account.num_late, account.num_vanished) == (0, 0)


@SLOW
@given(traces(), st.lists(st.integers(0, 1500), max_size=20))
def test_windows_partition_time_and_each_equals_the_oracle(trace, polls):
    account = replay(trace, polls)
    windows = windows_of(account)
    assert [w.step for w in windows] == [None, *(step for _, step in trace.steps)]
    begins = [trace.begin, *(time_ns for time_ns, _ in trace.steps)]
    assert [w.begin_ns for w in windows] == begins
    assert [w.end_ns for w in windows[:-1]] == begins[1:]
    for window, end in zip(windows, [*begins[1:], trace.end], strict=True):
        same(window.split, oracle(trace, window.begin_ns, end))


@SLOW
@given(traces(), st.lists(st.integers(0, 1500), max_size=20))
def test_pieces_cover_the_window_without_gap_or_overlap(trace, polls):
    for window in windows_of(replay(trace, polls)):
        end = trace.end if window.end_ns is None else window.end_ns
        at = window.begin_ns
        for piece in window.pieces:
            assert piece.begin_ns == at < piece.end_ns
            at = piece.end_ns
        assert at == end
        idle = sum(p.end_ns - p.begin_ns for p in window.pieces if p.kind == "idle")
        active = sum(p.end_ns - p.begin_ns for p in window.pieces if p.kind == "stage")
        assert (idle, active) == (window.split.idle_ns, window.split.active_ns)


@SLOW
@given(traces(), st.lists(st.integers(0, 1500), max_size=20), st.integers(0, 2**32))
def test_polls_with_random_jitter_of_records_never_break_the_sum(trace, polls, seed):
    """Records lost, duplicated or late, in-flight rows missing: wall is still accounted once."""
    rng = random.Random(seed)
    account = TimeAccount(trace.begin)
    for now in sorted(polls):
        for span in trace.spans:
            if rng.random() < 0.3:
                add(account, span.span, span.parent, span.kind, span.name, span.begin, span.end)
        if rng.random() < 0.3 and trace.steps:
            account.begin_step(*rng.choice(trace.steps))
        account.note_open([as_open(s) for s in trace.spans if rng.random() < 0.3])
        account.advance(now)
    assert wall(account.totals()) == account.watermark_ns - trace.begin
    total = Split()
    for window in windows_of(account):
        total.merge(window.split)
    assert wall(total) == wall(account.totals())
    assert min([0, *total.stages_ns.values(), *total.waits_ns.values()]) == 0


@SLOW
@given(traces() | traces(most_contexts=1), st.lists(st.integers(0, 1500), max_size=20))
def test_sums_give_what_the_sweeps_give_however_polls_are_spaced(trace, polls):
    """After its pieces are full, the time of a step is summed up instead of swept."""
    with patch.object(pieces, "_MAX_PIECES", 1):
        summed = windows_of(replay(trace, polls))
        with patch.object(accounting, "sums_if_nested", lambda *_: None):
            swept = windows_of(replay(trace, polls))
    for one, other in zip(summed, swept, strict=True):
        assert (one.begin_ns, one.end_ns, one.split) == (other.begin_ns, other.end_ns, other.split)
        assert one.first_pieces.num_omitted == other.first_pieces.num_omitted


@SLOW
@given(traces() | traces(most_contexts=1), st.lists(st.integers(0, 1500), max_size=20))
@pytest.mark.parametrize("most_pieces", [1, 4, 256])
def test_many_rows_are_accounted_a_few_at_a_time(most_pieces, trace, polls):
    with patch.object(pieces, "_MAX_PIECES", most_pieces):
        whole = windows_of(replay(trace, polls))
        with patch.object(accounting, "_FEW_ROWS", 1):
            parts = windows_of(replay(trace, polls))
    for one, other in zip(whole, parts, strict=True):
        assert (one.begin_ns, one.end_ns, one.split) == (other.begin_ns, other.end_ns, other.split)


@SLOW
@given(traces(most_contexts=1), st.lists(st.integers(0, 1500), max_size=20))
def test_what_one_thread_does_is_always_summed(trace, polls):
    ends = {span.span: span.end for span in trace.spans}
    assume(all(span.end <= ends.get(span.parent, span.end) for span in trace.spans))
    answers = []

    def sums(rows, begin_ns):
        answers.append(accounting_sums(rows, begin_ns))
        return answers[-1]

    accounting_sums = accounting.sums_if_nested
    with patch.object(pieces, "_MAX_PIECES", 1), patch.object(accounting, "sums_if_nested", sums):
        replay(trace, polls)
    assert None not in answers


ROWS = st.tuples(
    st.integers(0, 30), st.integers(1, 30), st.integers(0, 6), st.sampled_from([STAGE, WAIT])
)


@settings(max_examples=500, deadline=None)
@given(st.lists(ROWS, max_size=6))
def test_sums_of_any_spans_are_those_of_the_sweep_or_none(shapes):
    """Also where parents are unknown, end before their children or do not surround them."""
    spans = [
        Span(
            number, parent if parent < number else 0, kind, f"{kind}{number}", begin, begin + length
        )
        for number, (begin, length, parent, kind) in enumerate(shapes, 1)
    ]
    rows = [
        (s.begin, s.span, s.end, s.parent, s.kind, s.name)
        for s in sorted(spans, key=lambda s: (s.end, -s.span))
    ]
    sums = accounting.sums_if_nested(rows, 0)
    if sums is None:
        return
    found = Split()
    found.add_sums(sums, 100)
    same(found, oracle(Trace(0, 100, spans), 0, 100))
    times = {t for s in spans for t in (s.begin, s.end)} - {0}
    assert (sums.num_ends, sums.last_ns) == (len(times), max(times, default=0))


def test_no_sums_where_a_span_surrounds_one_that_is_no_child_of_it():
    before_its_child = [(5, 1, 10, 0, STAGE, "reward"), (12, 3, 14, 2, STAGE, "forward")]
    around = (3, 2, 20, 0, STAGE, "actor_update")
    assert accounting.sums_if_nested([*before_its_child, around], 0) is None
    later = (11, 2, 20, 0, STAGE, "actor_update")
    sums = accounting.sums_if_nested([*before_its_child, later], 0)
    assert sums is not None
    assert sums.stages_ns == {"reward": 5, "forward": 2, "actor_update": 7}


def test_stretches_that_are_only_summed_up_are_counted():
    with patch.object(pieces, "_MAX_PIECES", 1):
        account = TimeAccount(0)
        add(account, 1, 0, STAGE, "rollout", 0, 10)
        account.advance(20)
        assert account.current.first_pieces.num_omitted == 1
        add(account, 2, 0, STAGE, "reward", 20, 30)
        add(account, 3, 0, STAGE, "reward", 35, 40)
        account.advance(50)  # reward, idle, reward, idle
        assert account.current.first_pieces.num_omitted == 1 + 4
        add(account, 4, 0, STAGE, "reward", 55, 60)
        account.advance(60)  # idle, reward
        assert account.current.first_pieces.num_omitted == 1 + 4 + 2
    assert dict(account.totals().stages_ns) == {"rollout": 10, "reward": 20}


def test_a_long_span_moves_the_counters_while_it_is_open():
    account = TimeAccount(0)
    rollout = SpanEvent(1, 0, STAGE, "rollout", 10, None)
    for now in (100, 200, 300):
        account.note_open([rollout])
        account.advance(now)
    assert account.totals().stages_ns == {"rollout": 290}
    add(account, 1, 0, STAGE, "rollout", 10, 320)
    account.note_open([])
    account.advance(400)
    assert account.totals().stages_ns == {"rollout": 310}
    assert account.totals().idle_ns == 90


def test_a_span_across_a_step_boundary_is_split_there():
    account = TimeAccount(0)
    add(account, 1, 0, STAGE, "rollout", 10, 90)
    account.begin_step(50, 1)
    account.advance(100)
    first, second = windows_of(account)
    assert (first.split.stages_ns["rollout"], second.split.stages_ns["rollout"]) == (40, 40)
    assert (first.split.idle_ns, second.split.idle_ns) == (10, 10)


def test_a_span_that_vanished_is_closed_after_3_polls_and_counted():
    account = TimeAccount(0)
    account.note_open([SpanEvent(1, 0, STAGE, "rollout", 0, None)])
    for now in range(10, 100, 10):
        account.advance(now)
        account.note_open([])
    account.advance(100)
    assert account.num_vanished == 1
    assert account.totals().stages_ns["rollout"] <= 40
    assert wall(account.totals()) == 100


def test_a_late_span_is_counted_and_takes_only_time_that_is_not_accounted():
    account = TimeAccount(0)
    account.advance(100)
    add(account, 1, 0, STAGE, "rollout", 20, 60)
    add(account, 2, 0, STAGE, "reward", 80, 130)
    account.advance(200)
    assert account.num_late == 2
    assert dict(account.totals().stages_ns) == {"reward": 30}
    assert account.totals().idle_ns == 170


def test_a_late_parent_is_no_leaf_while_its_child_is_open():
    """The parent found no in-flight slot: it is known at its end only, after its children."""
    account = TimeAccount(0)
    account.note_open([SpanEvent(2, 1, WAIT, "barrier", 10, None)])
    account.advance(50)
    add(account, 1, 0, STAGE, "rollout", 0, 100)
    add(account, 2, 1, WAIT, "barrier", 10, 80)
    add(account, 3, 1, WAIT, "barrier", 85, 90)
    account.advance(200)
    totals = account.totals()
    assert sum(totals.waits_ns.values()) == (80 - 10) + (90 - 85)
    assert totals.stages_ns["rollout"] == 5 + 10, "80 to 85 and 90 to 100"
    assert wall(totals) == 200


def test_the_last_of_concurrent_waits_has_the_time():
    account = TimeAccount(0)
    add(account, 1, 0, WAIT, "queue", 0, 100)
    add(account, 2, 0, WAIT, "barrier", 40, 60)
    account.advance(100)
    assert account.totals().waits_ns == {("queue", ""): 80, ("barrier", ""): 20}


def test_concurrent_stages_count_once_for_active_and_once_each():
    account = TimeAccount(0)
    for span, name in enumerate(["rollout", "rollout", "reward"], 1):
        add(account, span, 0, STAGE, name, 0, 100)
    account.advance(100)
    assert account.totals().active_ns == 100
    assert account.totals().stages_ns == {"rollout": 100, "reward": 100}


def test_an_orderly_end_closes_the_step_and_a_death_leaves_it_open():
    for orderly, num_finished in ((True, 2), (False, 1)):
        account = TimeAccount(0)
        account.begin_step(10, 1)
        account.finish(50, orderly=orderly)
        assert len(account.finished) == num_finished
        assert account.finished[-1].end_ns == (50 if orderly else 10)


def test_an_orderly_end_between_two_steps_closes_none():
    account = TimeAccount(0)
    account.begin_step(10, 1)
    account.begin_step(20, 2)
    account.finish(50, orderly=True, has_step=False)
    assert [window.step for window in account.finished] == [None, 1]
    assert account.current.step is None


def test_advance_never_goes_back():
    account = TimeAccount(100)
    account.advance(50)
    account.advance(200)
    account.advance(150)
    assert (account.watermark_ns, wall(account.totals())) == (200, 100)


IDS = st.integers(1, 6)


@settings(max_examples=200, deadline=2000)
@given(
    st.lists(
        st.tuples(IDS, st.integers(0, 6), st.integers(0, 9), st.integers(0, 50), st.integers(0, 50))
    ),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_corrupted_ids_parents_and_kinds_never_hang_or_raise(rows, polls):
    account = TimeAccount(0)
    for now in sorted(polls):
        for span, parent, kind, begin, end in rows:
            add(account, span, parent, kind, "n", begin, end)
        account.note_open([SpanEvent(s, p, k, "n", b, None) for s, p, k, b, _ in rows])
        account.advance(now)
    assert wall(account.totals()) == account.watermark_ns


def test_a_span_with_the_number_0_is_no_span():
    """0 means "no span": a corrupted record with that number must not become a cycle."""
    account = TimeAccount(0)
    add(account, 0, 0, WAIT, "queue", 0, 100)
    add(account, 1, 0, WAIT, "barrier", 10, 50)
    account.advance(100)
    assert dict(account.totals().waits_ns) == {("barrier", ""): 40}
    assert wall(account.totals()) == 100
