"""Spans are read within bounds; attributes that nobody reads are not stored."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dfx_agent.hub.otlp.body_reader import TooLargeError
from dfx_agent.hub.otlp.requests import (
    MAX_ATTRIBUTES,
    MAX_SPAN_BYTES,
    MAX_SPANS,
    OtlpRequest,
    read_spans,
)
from dfx_agent.hub.otlp.traces import ReceivedSpan


def request(num_spans=1, name="work", num_attributes=0):
    sent = ExportTraceServiceRequest()
    process = sent.resource_spans.add()
    process.resource.attributes.add(key="dfx.rank").value.int_value = 3
    process.resource.attributes.add(key="secret").value.string_value = "x"
    scope = process.scope_spans.add()
    for number in range(num_spans):
        span = scope.spans.add(name=name, trace_id=b"t" * 16, span_id=b"s" * 8)
        span.start_time_unix_nano, span.end_time_unix_nano = 10 + number, 20 + number
        span.attributes.add(key="global_step").value.string_value = "7" * 200
        for _ in range(num_attributes):
            span.attributes.add()
    return sent.SerializeToString()


def test_a_span_is_read_with_what_joins_it():
    reported = ReceivedSpan(
        "work", b"t" * 16, b"s" * 8, b"", 10, 20, {"global_step": "7" * 96}, {"dfx.rank": 3}
    )
    assert read_spans(request(), "", 1 << 20) == OtlpRequest((reported,), 0)


def test_a_large_span_is_counted_and_costs_no_other():
    small, large = request(), request(name="x" * MAX_SPAN_BYTES)
    found = read_spans(small + large + small, "", 1 << 20)
    assert (len(found.items), found.num_left_out) == (2, 1)


def test_more_spans_than_are_read_are_refused():
    with pytest.raises(TooLargeError, match="more than 16,384 spans"):
        read_spans(request(MAX_SPANS + 1), "", 1 << 30)


def test_a_span_with_more_attributes_than_are_read_is_refused():
    with pytest.raises(TooLargeError, match="more than 256 attributes"):
        read_spans(request(num_attributes=MAX_ATTRIBUTES), "", 1 << 20)


def test_a_large_resource_is_refused():
    sent = ExportTraceServiceRequest()
    sent.resource_spans.add().resource.attributes.add(key="x" * MAX_SPAN_BYTES)
    with pytest.raises(TooLargeError, match="resource of more than 64 KiB"):
        read_spans(sent.SerializeToString(), "", 1 << 20)
