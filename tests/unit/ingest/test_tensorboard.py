"""Event files that tensorboardX and torch.utils.tensorboard have written, and damaged ones."""

import base64
import struct
from pathlib import Path

import pytest

from dfx_agent.ingest.reader import read
from dfx_agent.ingest.run import Notes, UnreadableLogError
from dfx_agent.ingest.tensorboard import read_tensorboard

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


def test_any_changed_byte_is_survived(tmp_path):
    whole = base64.b64decode(TENSOR)
    path = tmp_path / "events.out.tfevents.1"
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :])
        list(read_tensorboard(path, Notes()))


def test_damage_is_said(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(base64.b64decode(SIMPLE) + struct.pack("<QI", 1 << 40, 0))
    run = read(path)
    assert len(run.rows) == 2
    assert "damaged or cut off" in run.warnings[0]


def test_a_folder_without_events_says_so(tmp_path):
    with pytest.raises(UnreadableLogError, match="no events"):
        read(tmp_path)
