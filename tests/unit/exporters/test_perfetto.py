"""The trace of a few steps: who has which track, and that nothing overlaps by a nanosecond."""

import json

from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.exporters.perfetto import trace
from dfx_agent.snapshot import Piece, TimelineRow

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


def test_each_rank_is_a_process_with_a_track_of_steps_and_one_of_pieces():
    pieces = [("stage", "rollout", 2.0), ("idle", "", 0.5), ("wait", "barrier", 1.0)]
    rows = [row("0", 7, pieces, end=BEGIN + 3.5), row("1", 7, pieces, omitted=3)]
    document = json.loads(json.dumps(trace("a/b", rows, "1.2"), allow_nan=False))
    names = [
        (e["pid"], e.get("tid"), e["args"]["name"])
        for e in document["traceEvents"]
        if e["name"] in {"process_name", "thread_name"}
    ]
    assert [name for _, _, name in names] == [
        "trainer rank 0", "steps", "stages and waits",
        "trainer rank 1", "steps", "stages and waits",
    ]  # fmt: skip
    assert all(pid != tid for pid, tid, _ in names)
    first, second = spans(document, "step")
    assert (first["name"], first["ts"], first["dur"]) == ("step 7", 0.0, 3.5e6)
    assert second["args"] == {"step": 7, "rank": "1", "omitted_pieces": 3}
    assert second["dur"] == 3.5e6  # it goes on: until its newest piece
    assert [e["name"] for e in spans(document, "stage")] == ["rollout"] * 2
    (wait, _) = spans(document, "wait")
    assert (wait["name"], wait["ts"], wait["dur"]) == ("wait barrier", 2.5e6, 1e6)
    assert document["otherData"] == {"run": "a/b", "begin_seconds": BEGIN, "dfx_agent": "1.2"}


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
