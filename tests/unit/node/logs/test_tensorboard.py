"""Event files that tensorboardX and torch.utils.tensorboard have written, and damaged ones."""

import base64
import gzip
import struct
from pathlib import Path

import pytest

from dfx_agent.node.logs.reader import read
from dfx_agent.node.logs.run import Notes, UnreadableLogError
from dfx_agent.node.logs.tensorboard import crc32c, masked_crc32c, read_tensorboard

# tensorboardX 2.6: actor/entropy 0.5 at step 10 and 1.5 at step 11, a text at step 10
SIMPLE = (
    b"GAAAAAAAAACjf0siCa0EUTBMwNpBGg1icmFpbi5FdmVudDoyjdprmSMAAAAAAAAAsJ93QwkGFVEwTMDaQRAKKhYK"
    b"FAoNYWN0b3IvZW50cm9weRUAAAA/Jf5yOyMAAAAAAAAAsJ93QwmrS1EwTMDaQRALKhYKFAoNYWN0b3IvZW50cm9w"
    b"eRUAAMA/W7IdGD4AAAAAAAAA2dJA5wm3VVEwTMDaQRAKKjEKLwoSbm90ZXMvdGV4dF9zdW1tYXJ5Qg8IBxIEEgII"
    b"AUIFaGVsbG9KCAoGCgR0ZXh0KKboWg=="
)
# torch 2.13, new style: actor/entropy 0.25 (float tensor), actor/ppo_kl -1e-3 (double) at step 3
TENSOR = (
    b"SAAAAAAAAAD+kkidCYV9UTBMwNpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVy"
    b"LmV2ZW50X2ZpbGVfd3JpdGVyLxNfrzUAAAAAAAAA1sVd5gnCiVEwTMDaQRADKigKJgoNYWN0b3IvZW50cm9weUII"
    b"CAEqBAAAgD5KCwoJCgdzY2FsYXJzyLOpMDgAAAAAAAAAo3l9VwncilEwTMDaQRADKisKKQoMYWN0b3IvcHBvX2ts"
    b"QgwIAjII/Knx0k1iUL9KCwoJCgdzY2FsYXJzbZmvCg=="
)


def write(folder: Path, data: bytes, name: str = "events.out.tfevents.1.host") -> Path:
    path = folder / name
    path.write_bytes(base64.b64decode(data))
    return path


def test_scalars_are_read_and_texts_are_not(tmp_path):
    run = read(write(tmp_path, SIMPLE))
    assert run.framework == "verl"
    assert run.rows == [(10, {"actor/entropy": 0.5}), (11, {"actor/entropy": 1.5})]


@pytest.mark.parametrize("name", ["events.out.tfevents.1.gz", "run7.tfevents.gz"])
def test_a_packed_file_is_read_as_the_file_itself(tmp_path, name):
    whole = read(write(tmp_path, SIMPLE)).rows
    packed = gzip.compress(base64.b64decode(SIMPLE))
    (tmp_path / name).write_bytes(packed)
    assert read(tmp_path / name).rows == whole
    (tmp_path / name).write_bytes(packed[:-40])
    run = read(tmp_path / name)
    assert run.rows == whole[: len(run.rows)]
    assert "cut off" in run.warnings[0] or "damaged" in run.warnings[0]


def test_a_file_that_lies_packed_next_to_itself_is_read_once(tmp_path):
    path = write(tmp_path, SIMPLE)
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert [step for step, _ in read(tmp_path).rows] == [10, 11]


def test_scalars_written_as_tensors_of_either_precision_are_read(tmp_path):
    run = read(write(tmp_path, TENSOR))
    assert run.rows == [(3, {"actor/entropy": 0.25, "actor/ppo_kl": -1e-3})]


def test_steps_out_of_order_within_a_file_are_no_restart(tmp_path):
    whole, records, offset = base64.b64decode(SIMPLE), [], 0
    while offset < len(whole):
        size = 16 + struct.unpack_from("<Q", whole, offset)[0]
        records.append(whole[offset : offset + size])
        offset += size
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(b"".join([*reversed(records), records[-1]]))
    assert [step for step, _ in read(path).rows] == [10, 11]


def test_a_folder_is_one_run_and_a_later_file_a_later_attempt(tmp_path):
    write(tmp_path, SIMPLE, "events.out.tfevents.100.host")
    write(tmp_path, TENSOR, "events.out.tfevents.200.host")
    assert [step for step, _ in read(tmp_path).rows] == [10, 11, 3]


def test_a_file_cut_anywhere_gives_what_came_before(tmp_path):
    whole = base64.b64decode(SIMPLE)
    for size in range(len(whole)):
        path = tmp_path / "events.out.tfevents.1"
        path.write_bytes(whole[:size])
        steps = [record["step"] for record in read_tensorboard(path, Notes())]
        assert len(steps) <= 2
        assert steps == [10, 11][: len(steps)]


def test_of_a_file_with_any_changed_byte_nothing_but_what_was_written_is_read(tmp_path):
    whole = base64.b64decode(SIMPLE)
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(whole)
    true = list(read_tensorboard(path, Notes()))
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x41]) + whole[i + 1 :])
        notes = Notes()
        found = list(read_tensorboard(path, notes))
        assert found == true[: len(found)], i
        assert any("is damaged" in line for line in notes.lines), i


def test_damage_is_said_with_the_records_before_it(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(base64.b64decode(SIMPLE) + record(b"", crc=1) + base64.b64decode(TENSOR))
    run = read(path)
    assert [step for step, _ in run.rows] == [10, 11]
    assert run.warnings == [
        "events.out.tfevents.1 is damaged: its first 4 records are read, the rest is not"
    ]


def test_zeros_where_a_crash_left_a_hole_are_no_records(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(base64.b64decode(SIMPLE) + bytes(160))
    assert "its first 4 records are read" in read(path).warnings[0]


def test_a_file_that_is_cut_off_says_so(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(base64.b64decode(SIMPLE)[:-3])
    assert read(path).warnings == ["events.out.tfevents.1 is cut off: read up to there"]


def test_damage_of_one_file_costs_no_other(tmp_path):
    write(tmp_path, SIMPLE, "events.out.tfevents.100.host")
    write(tmp_path, TENSOR, "events.out.tfevents.200.host")
    first = tmp_path / "events.out.tfevents.100.host"
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    run = read(tmp_path)
    assert [step for step, _ in run.rows] == [10, 11, 3]
    assert "its first 3 records" in run.warnings[0]


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_a_large_record_is_checked_where_it_holds_scalars(tmp_path, size):
    """Field 9 of an event is its metadata; a summary may hold thousands of values."""
    padding = b"\x4a" + varint(size) + bytes(size)
    scalar = b"\x10\x05\x2a\x0c\x0a\x0a\x0a\x03a/b\x15" + struct.pack("<f", 0.5)
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(record(padding + scalar))
    assert list(read_tensorboard(path, Notes())) == [{"a/b": 0.5, "step": 5}]
    path.write_bytes(record(padding + scalar, crc=1))
    assert list(read_tensorboard(path, Notes())) == []


def record(data: bytes, crc: int | None = None) -> bytes:
    """A TFRecord; ``crc`` is that of its data, the true one if None."""
    length = struct.pack("<Q", len(data))
    of_data = masked_crc32c(data) if crc is None else crc
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", of_data)


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14])


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E),
    ],
)  # fmt: skip
def test_the_crc_is_that_of_rfc_3720(data, crc):
    assert crc32c(data) == crc


def test_a_folder_without_events_says_so(tmp_path):
    with pytest.raises(UnreadableLogError, match="no events"):
        read(tmp_path)
