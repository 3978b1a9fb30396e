"""A request is read field by field: what is beyond a bound costs less than 100 ms and 10 MB."""

import gzip
import time
import tracemalloc

import pytest

from dfx_agent.hub.otlp.body_reader import MAX_FIELDS, BodyReader, DamagedError, TooLargeError
from dfx_agent.hub.otlp.endpoint import MAX_PLAIN_BYTES
from dfx_agent.hub.otlp.requests import OtlpRequest, read_records, read_spans

EMPTY = b"\x0a\x00"  # a message of field 1, without a field
NUM_EMPTY = 4 << 20


def varint(number):
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def field(number, content):
    """Of bytes, text or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def test_fields_are_read_skipped_or_a_number():
    message = field(1, b"first") + b"\x10\x96\x01" + b"\x1d1234" + b"\x2112345678" + field(5, b"")
    reader = BodyReader(message, "", 1 << 20)
    found = [
        (number, reader.read(2) if has_bytes and size else size)
        for number, size, has_bytes in reader.fields()
    ]
    assert found == [(1, b"fi"), (2, 150), (5, 0)]


def test_a_message_is_read_over_the_edges_of_inflated_parts():
    texts = [bytes([number]) * 100_000 for number in range(1, 20)]
    packed = gzip.compress(b"".join(field(1, text) for text in texts))
    reader = BodyReader(packed, "gzip", 1 << 30)
    assert [reader.read(size) for size in reader.messages(1)] == texts


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x08" + b"\xff" * 10,
        b"\x00\x00",
        b"\x0b",
        b"\x0d12",
        field(1, b"\x0a\x05abc") + b"1234567",
        field(1, b"\x09123"),
    ],
    ids=[
        "no size",
        "cut off",
        "a number without an end",
        "no number",
        "a group",
        "a cut number",
        "longer than its message",
        "a number longer than its message",
    ],
)
def test_a_damaged_message_is_refused(message):
    reader = BodyReader(message, "", 1 << 20)
    with pytest.raises(DamagedError):
        [list(reader.fields(size)) for size in reader.messages(1)]


BOMBS = {
    "resources": EMPTY * NUM_EMPTY,
    "records": field(1, field(2, b"\x12\x00" * NUM_EMPTY)),
    "attributes": field(1, field(2, field(2, b"\x32\x00" * NUM_EMPTY))),
    "values": field(1, field(2, field(2, field(5, EMPTY * NUM_EMPTY)))),
    "one large value": field(9, bytes(MAX_PLAIN_BYTES)),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("read", [read_records, read_spans], ids=["logs", "traces"])
def test_a_bomb_costs_little(bomb, read):
    packed = gzip.compress(BOMBS[bomb], 1)
    begin = time.thread_time()
    assert is_refused(read, packed)
    assert time.thread_time() - begin < 0.5
    tracemalloc.start()
    assert is_refused(read, packed)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 10e6


def is_refused(read, packed):
    """The request, or the only large span of it."""
    try:
        found = read(packed, "gzip", MAX_PLAIN_BYTES)
    except TooLargeError:
        return True
    return isinstance(found, OtlpRequest) and found.items == () and found.num_left_out == 1


def test_a_plain_body_is_counted_too():
    with pytest.raises(TooLargeError, match="65,536 fields"):
        list(BodyReader(EMPTY * (MAX_FIELDS + 1), "", 1 << 30).fields())
