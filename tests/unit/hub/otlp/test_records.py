"""Requests of strangers are read to their bound, or refused in one line."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otlp_bodies import body, known

from dfx_agent.facts import envelope
from dfx_agent.hub.otlp.body_reader import TooLargeError
from dfx_agent.hub.otlp.requests import MAX_RECORDS, FactsRecord, read_records

MAX_BYTES = 1 << 20


def test_a_record_says_whose_document_it_is():
    attributes = known() | {envelope.URL: "http://a:1", envelope.IS_LAST: True}
    sent = gzip.compress(body(attributes, document=b'{"a": 1}'))
    (record,) = read_records(sent, "gzip", MAX_BYTES).items
    assert record == FactsRecord(
        "node-a", "agent-1", "r", b'{"a": 1}', is_last=True, url="http://a:1"
    )


def test_records_of_others_are_counted():
    found = read_records(body({"service": "x"}, known()), "", MAX_BYTES)
    assert (len(found.items), found.num_left_out) == (1, 1)


def test_names_that_would_break_a_line_do_not():
    (record,) = read_records(body(known(node="a\nb\x1b" + "x" * 999)), "", MAX_BYTES).items
    assert record.node.startswith("a\\nb\\x1b")
    assert len(record.node) == 256


def test_more_log_records_than_are_read_are_refused():
    assert len(read_records(body(*[known()] * MAX_RECORDS), "", MAX_BYTES).items) == MAX_RECORDS
    with pytest.raises(TooLargeError, match="more than 1,024 log records"):
        read_records(body(*[known()] * (MAX_RECORDS + 1)), "", MAX_BYTES)


def test_bytes_that_are_no_text_do_not_reach_a_name():
    sent = body(known(node="a-node")).replace(b"a-node", b"\xff-node")
    assert read_records(sent, "", MAX_BYTES).items[0].node == "\ufffd-node"


@pytest.mark.parametrize(
    ("sent", "encoding", "reason"),
    [
        (b"\xff", "", "not an OTLP request"),
        (b"abc", "gzip", "not gzip"),
        (gzip.compress(b"abc")[:-4], "gzip", "without its end"),
        (b"", "br\n", r"br\\n: only gzip"),
    ],
    ids=["damaged", "not packed", "cut off", "another packing"],
)
def test_why_it_cannot_be_read(sent, encoding, reason):
    with pytest.raises(ValueError, match=reason):
        read_records(sent, encoding, MAX_BYTES)


def refusal(sent, encoding):
    """ "" of what can be read."""
    try:
        read_records(sent, encoding, MAX_BYTES)
    except ValueError as error:
        return str(error)
    return ""


@given(st.binary(max_size=300), st.sampled_from(["", "gzip"]), st.booleans())
def test_any_bytes_are_a_request_or_a_line(noise, encoding, is_packed):
    assert "\n" not in refusal(gzip.compress(noise) if is_packed else noise, encoding)


@given(st.binary(min_size=1, max_size=20), st.integers(0, 200))
def test_a_request_that_was_damaged_is_one_or_a_line(noise, at):
    sent = bytearray(body(known(), known()))
    sent[at : at + len(noise)] = noise
    assert "\n" not in refusal(bytes(sent), "")
