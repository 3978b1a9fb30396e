"""The trace of a few steps: who has which track, and that nothing overlaps by a nanosecond."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.exporters.perfetto import TraceContext, trace
from dfx_agent.snapshot import (
    Incident,
    Piece,
    RunRow,
    SignalHistory,
    SignalSeries,
    StepCell,
    StepRow,
    TimelineRow,
    TimeSplit,
)

BEGIN = 1795297271.726728


def row(rank, step, pieces, *, end=None, omitted=0):
    """``pieces`` as (kind, name, seconds), one behind the other."""
    at, made = BEGIN, []
    for kind, name, seconds in pieces:
        made.append(Piece(kind, name, at, at + seconds))
        at += seconds
    return TimelineRow("trainer", rank, step, BEGIN, end, omitted, tuple(made))


def spans(document, category):
    return [e for e in document["traceEvents"] if e["ph"] == "X" and e["cat"] == category]


def nesting(document):
    """(pid, name, depth) of each slice as a viewer nests them; a slice never leaves its parent."""
    spans = [e for e in document["traceEvents"] if e["ph"] == "X"]
    spans.sort(key=lambda e: (e["pid"], e["tid"], e["ts"], -e["dur"]))
    found, around, track = [], [], None
    for event in spans:
        begin, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
        if track != (event["pid"], event["tid"]):
            track, around = (event["pid"], event["tid"]), []
        while around and around[-1] <= begin:
            around.pop()
        assert not around or end <= around[-1], event
        around.append(end)
        found.append((event["pid"], event["name"], len(around)))
    return found


def test_each_rank_is_a_process_with_its_steps():
    pieces = [("stage", "rollout", 2.0), ("idle", "", 0.5), ("wait", "barrier", 1.0)]
    rows = [row("0", 7, pieces, end=BEGIN + 3.5), row("1", 7, pieces, omitted=3)]
    document = json.loads(json.dumps(trace("a/b", rows, "1.2"), allow_nan=False))
    names = [
        (e["pid"], e.get("tid"), e["args"]["name"])
        for e in document["traceEvents"]
        if e["name"] in {"process_name", "thread_name"}
    ]
    assert [name for _, _, name in names] == [
        "trainer rank 0", "steps, stages and waits", "trainer rank 1", "steps, stages and waits",
    ]  # fmt: skip
    assert all(pid != tid for pid, tid, _ in names)
    first, second = spans(document, "step")
    assert (first["name"], first["ts"], first["dur"]) == ("step 7", 0.0, 3.5e6)
    assert second["args"] == {"step": 7, "rank": "1", "omitted_pieces": 3}
    assert second["dur"] == 3.5e6  # it goes on: until its newest piece
    assert [e["name"] for e in spans(document, "stage")] == ["rollout"] * 2
    wait = spans(document, "wait")[0]
    assert (wait["name"], wait["ts"], wait["dur"]) == ("wait barrier", 2.5e6, 1e6)
    assert document["otherData"] == {"run": "a/b", "begin_seconds": BEGIN, "dfx_agent": "1.2"}


def test_forward_and_backward_are_inside_the_update_with_the_waits_between_them():
    pieces = [
        ("stage", "rollout", 1.0), ("stage", "actor_update", 0.1), ("stage", "forward", 0.3),
        ("wait", "collective", 0.2), ("stage", "backward", 0.4), ("wait", "barrier", 0.1),
        ("stage", "critic_update", 0.1), ("stage", "forward", 0.2), ("stage", "my_own", 0.1),
        ("stage", "forward", 0.1),
    ]  # fmt: skip
    found = [item[1:] for item in nesting(trace("r", [row("0", 1, pieces)], "0"))]
    assert found == [
        ("step 1", 1), ("rollout", 2), ("actor_update", 2), ("forward", 3), ("wait collective", 3),
        ("backward", 3), ("wait barrier", 2), ("critic_update", 2), ("forward", 3), ("my_own", 2),
        ("forward", 2),
    ]  # fmt: skip


def test_an_arrow_leads_from_the_rank_that_came_last_to_each_that_waited():
    def rank(name, work):
        waited = 2.0 - work
        return row(name, 1, [("stage", "rollout", work), ("wait", "collective", waited)])

    rows = [rank("0", 0.5), rank("1", 1.9), rank("2", 0.6)]
    document = trace("r", rows, "0")
    flows = [e for e in document["traceEvents"] if e.get("cat") == "flow"]
    assert [(e["ph"], e["pid"]) for e in flows] == [("s", 3), ("f", 2), ("s", 3), ("f", 4)]
    assert flows[0]["ts"] == pytest.approx(1.9e6), "when it came"
    assert 1.99e6 < flows[1]["ts"] < 2e6, "just before the slice after the wait, to which it binds"
    assert all("bp" not in flow for flow in flows), "else Perfetto turns the arrow round"
    together = trace("r", [rank("0", 0.5), rank("1", 0.6)], "0")["traceEvents"]
    assert not [e for e in together if e.get("cat") == "flow"], "nobody was late"


def test_incidents_are_slices_with_a_mark_and_curves_are_counters():
    rows = [row("0", step, [("stage", "rollout", 1.0)], end=BEGIN + 1.0) for step in (7,)]
    incident = Incident(
        "a", "hang", "found", "critical", "trainer", ("0",), "", "", BEGIN + 0.25, 7, None,
        "It hangs.", "", "", "It hangs. Act.", (), (),
    )  # fmt: skip
    old = replace(incident, id="b", since_seconds=BEGIN - 90, end_seconds=BEGIN - 30)
    split = TimeSplit(2.0, 1.0, wait_seconds={"collective": {"": 0.5}})
    cells = (StepCell("0", split, {"prompt": 30.0, "response": 10.0}),)
    steps = (StepRow(7, "trainer", BEGIN, BEGIN + 1.0, (), None, cells),)
    run = RunRow("r", "", 0, BEGIN, (), steps, (), incidents=(incident,), past_incidents=(old,))
    reward = SignalSeries("reward", (0.5, math.nan), (None,) * 2, (None,) * 2, (None,) * 2)
    history = SignalHistory((7, 8), (False,) * 2, (reward,), ())
    document = trace("r", rows, "0", TraceContext(run, history))
    events = json.loads(json.dumps(document, allow_nan=False))["traceEvents"]
    (lasted,) = spans({"traceEvents": events}, "incident")
    assert (lasted["ts"], lasted["dur"]) == (pytest.approx(0.25e6), pytest.approx(0.75e6))
    assert lasted["args"]["ranks"] == "0"
    assert [(e["name"], e["ts"]) for e in events if e["ph"] == "i"] == [
        ("hang began", pytest.approx(0.25e6))
    ]
    counters = [(e["name"], e["ts"], e["args"]["value"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("reward", 1e6, 0.5), ("tokens per second", 0.0, 20.0),
        ("waited seconds of the step", 0.0, 0.5),
    ]  # fmt: skip


def test_what_came_before_the_first_step_has_a_name_and_an_empty_run_is_a_trace():
    assert spans(trace("r", [row("0", None, [])], "0"), "step")[0]["name"] == (
        "before the first step"
    )
    assert trace("r", [], "0")["traceEvents"] == []


@given(st.lists(st.floats(1e-7, 50.0), min_size=2, max_size=30))
def test_pieces_that_touch_do_not_overlap(seconds):
    """In whole nanoseconds, as a viewer reads them."""
    document = trace("r", [row("0", 1, [("stage", "rollout", s) for s in seconds])], "0")
    ends = 0
    for event in spans(document, "stage"):
        begin = round(event["ts"] * 1e3)
        assert begin >= ends
        ends = begin + round(event["dur"] * 1e3)
    nesting(document)
