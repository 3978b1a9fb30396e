"""Spans put together to steps of ranks: whose they are, when a trace is over, its bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfx_agent.commands.serve import span_traces
from dfx_agent.commands.serve.span_traces import SpanSender, SpanTraces, sender_of
from dfx_agent.hub.otlp.traces import ReceivedSpan

TRACE = b"t" * 16


def span(name="work", number=1, parent=b"", begin=10, end=20, trace=TRACE, step=None, **resource):
    known = {"service.name": "actor_train", "service.instance.id": "actor_train-3"} | resource
    attributes = {} if step is None else {"global_step": step}
    reported = {key: value for key, value in known.items() if value is not None}
    return ReceivedSpan(name, trace, bytes([number]) * 8, parent, begin, end, attributes, reported)


def of(**resource):
    return sender_of(span(**{"service.name": None, "service.instance.id": None} | resource))


@pytest.mark.parametrize(
    ("told", "sender"),
    [
        ({"service.name": "actor_train", "service.instance.id": "actor_train-3"}, ("actor", 3)),
        ({"service.name": "driver"}, ("driver", 0)),
        ({"service.name": "x", "dfx.role": "critic", "dfx.rank": 5}, ("critic", 5)),
        ({"service.name": "x", "rank": "12"}, ("x", 12)),
        ({"service.name": "x", "service.instance.id": "627cc493-f310-47de-96bd"}, None),
        ({"service.name": "unknown_service:python"}, None),
        ({"service.name": "x", "dfx.rank": "none"}, None),
        ({"service.name": "x", "dfx.rank": 2**31}, None),
        ({"service.name": "x", "dfx.rank": "9" * 5000}, None),
        ({}, None),
    ],
)
def test_who_tells_a_span(told, sender):
    found = of(**told)
    assert (found and (found.role, found.rank)) == sender


@pytest.mark.parametrize(("step", "known"), [(2**63 - 1, 2**63 - 1), (2**63, None)])
def test_a_step_that_no_record_holds_is_none(step, known):
    traces = SpanTraces()
    traces.add([span(step=str(step))], 0.0)
    assert [steps.step for steps in traces.whole(100.0)] == [known]


def test_a_trace_is_told_when_its_root_and_who_is_late_have_come():
    traces = SpanTraces()
    traces.add([span("worker.train_step", 2, b"\1" * 8)], 0.0)
    assert traces.whole(100.0) == []
    root = span("pipeline_step", 1, step=7, begin=5, end=30, **{"service.name": "driver"})
    root = replace(root, resource={"service.name": "driver"})
    traces.add([root], 100.0)
    assert traces.whole(105.0) == []
    (worker, driver) = sorted(traces.whole(106.0), key=lambda item: item.sender)
    assert worker.sender == SpanSender("", "actor", 3, "")
    assert (worker.step, worker.begin_ns, worker.end_ns) == (7, 5, 30)
    assert [stage.name for stage in worker.stages] == ["actor_update"]
    assert (driver.step, driver.stages) == (7, ())
    assert traces.whole(200.0) == []
    assert (traces.num_taken, traces.num_left_out) == (2, 0)


def test_a_trace_without_a_root_is_told_at_last():
    traces = SpanTraces()
    traces.add([span("work", 2, b"\1" * 8)], 0.0)
    assert traces.whole(899.0) == []
    (reported,) = traces.whole(900.0)
    assert (reported.step, [stage.name for stage in reported.stages]) == (None, ["work"])


def test_what_is_no_stage_leaves_its_children_to_what_is_around_it():
    traces = SpanTraces()
    inner = span("inner", 3, b"\2" * 8, 12, 14)
    middle = span("exec", 2, b"\1" * 8, 11, 19)
    traces.add([inner, middle, span("outer", 1)], 0.0)
    (reported,) = traces.whole(6.0)
    outer, within = reported.stages
    assert (outer.name, within.name, within.parent) == ("outer", "inner", outer.number)


def test_spans_in_a_ring_have_an_end():
    traces = SpanTraces()
    traces.add([span("exec", 1, b"\2" * 8), span("exec", 2, b"\1" * 8)], 0.0)
    traces.add([span("work", 3, b"\1" * 8)], 0.0)
    (reported,) = traces.whole(900.0)
    assert [stage.parent for stage in reported.stages] == [0]


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (20, 10), (5, 1 << 63)])
def test_strange_times_are_left_out(begin, end):
    traces = SpanTraces()
    assert traces.add([span(begin=begin, end=end)], 0.0) == 1
    assert traces.first == "work: its times or its ids make no sense"


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(span_traces, "_MAX_SPANS", 10)
    monkeypatch.setattr(span_traces, "_MAX_OF_TRACE", 4)
    traces = SpanTraces()
    reported = [span("work", 2, b"\1" * 8, trace=bytes([1]) * 16)] * 6
    assert traces.add(reported, 0.0) == 2
    for number in range(2, 9):
        traces.add([span("work", 2, b"\1" * 8, trace=bytes([number]) * 16)], 0.0)
    assert traces.num_left_out == 2 + 4, "the oldest trace went"
    assert sum(len(item.stages) for item in traces.whole(900.0)) == 7
