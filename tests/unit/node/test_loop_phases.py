"""Where a step went, phase by phase, and for how long its event loop was held in each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.node.event_loop import _KEEP_SPANS, RecentSpans, loop_step
from dfx_agent.node.segments.records import LoopHeld
from dfx_agent.node.time.account import SpanEvent, TimeAccount
from dfx_agent.wire.records import STAGE, WAIT

S = 10**9


def step_of(rows, held, opened=(), end=10 * S):
    """Step 3, from second 0 to ``end``."""
    account = TimeAccount(0)
    account.begin_step(0, 3)
    account.add({row[1]: row for row in rows})
    account.note_open(opened)
    account.begin_step(end, 4)
    account.advance(end)
    (window,) = (item for item in account.finished if item.step == 3)
    spans = RecentSpans()
    spans.add({row[1]: row for row in rows}, {})
    return loop_step(window, spans.within(window, opened), held)


def told(step):
    return {p.name: (p.seconds, p.late_seconds, [h.name for h in p.holders]) for p in step.phases}


def test_each_phase_has_its_own_time_and_who_held_the_loop_in_it():
    rows = [
        (1 * S, 2, 4 * S, 1, STAGE, "serialise"),
        (5 * S, 3, 6 * S, 1, WAIT, "queue"),
        (0 * S, 1, 8 * S, 0, STAGE, "pack"),
    ]
    held = [
        LoopHeld("dumps", 2 * S, 5 * S, 3.0),
        LoopHeld("add", 5 * S, 9 * S, 2.0),  # for half of that time it was not this code
    ]
    step = step_of(rows, held)
    assert (step.step, step.seconds) == (3, 10.0)
    assert [phase.name for phase in step.phases] == ["pack", "serialise", ""], "longest first"
    assert told(step) == {
        "pack": (5.0, 2.5, ["add", "dumps"]),
        "serialise": (3.0, 2.0, ["dumps"]),
        "": (2.0, 0.5, ["add"]),
    }


def test_memory_held_in_another_step_is_not_reported():
    held = [LoopHeld("before", -2 * S, 1 * S, 3.0), LoopHeld("after", 9 * S, 12 * S, 3.0)]
    step = step_of([(0, 1, 10 * S, 0, STAGE, "only")], held)
    assert told(step) == {"only": (10.0, 2.0, ["before", "after"])}


def test_phases_of_several_tasks_each_have_the_time():
    rows = [(1 * S, 1, 5 * S, 0, STAGE, "a"), (2 * S, 2, 6 * S, 0, STAGE, "b")]
    step = step_of(rows, [LoopHeld("x", 4 * S, 6 * S, 2.0)])
    late = {name: item[:2] for name, item in told(step).items()}
    assert late == {"a": (4.0, 1.0), "b": (4.0, 2.0), "": (5.0, 0)}


def test_a_phase_that_continues_after_its_step_is_seen():
    opened = [SpanEvent(1, 0, STAGE, "rollout", 4 * S, None)]
    step = step_of([], [LoopHeld("x", 7 * S, 8 * S, 1.0)], opened)
    assert told(step) == {"rollout": (6.0, 1.0, ["x"]), "": (4.0, 0, [])}


def test_how_late_is_not_said_where_spans_of_the_step_are_gone():
    few = [(n, n, n + 1, 0, STAGE, "a") for n in range(1, _KEEP_SPANS + 2)]
    step = step_of(few, [], end=20_000)
    (a, _) = sorted(step.phases, key=lambda phase: -len(phase.name))
    assert a.seconds > 0
    assert [phase.late_seconds for phase in step.phases] == [None, None]


def test_a_step_that_is_not_over_has_no_phases():
    account = TimeAccount(0)
    assert loop_step(account.current, [], []) is None


spans = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 60), st.sampled_from("ab"), st.integers(0, 3)),
    max_size=12,
)
stretches = st.lists(st.tuples(st.integers(-20, 110), st.integers(1, 40)), max_size=5)


@given(spans, stretches)
def test_no_phase_is_late_for_longer_than_it_took(given_spans, given_held):
    """Whatever overlaps what: stages, their parents, blocks one after the other."""
    rows = [
        (begin * S, n, (begin + length) * S, min(parent, n - 1), STAGE, name)
        for n, (begin, length, name, parent) in enumerate(given_spans, 1)
    ]
    now, held = -50, []
    for begin, length in sorted(given_held):
        now = max(now, begin)
        held.append(LoopHeld("x", now * S, (now + length) * S, float(length)))
        now += length
    step = step_of(rows, held, end=100 * S)
    within = sum(max(0, min(h.end_ns, 100 * S) - max(h.begin_ns, 0)) for h in held) / 1e9
    assert all(phase.late_seconds <= phase.seconds + 1e-6 for phase in step.phases)
    assert sum(phase.late_seconds for phase in step.phases) >= within - 1e-6
    assert max((p.late_seconds for p in step.phases), default=0) <= within + 1e-6
