"""Steps survive the way into a block of float32 and back; what is missing stays missing."""

import struct

import pytest

from dfx_agent.exporters.history import blocks
from dfx_agent.exporters.history.blocks import EMPTY, Schema
from dfx_agent.snapshot import StepCell, StepRow, TimeSplit


def cell(rank="0", **tokens):
    waits = {"collective": {"backward": 0.5, "": 0.25}}
    split = TimeSplit(4.0, 3.0, 0.25, {"rollout": 2.0, "backward": 1.0}, waits)
    return StepCell(rank, split, tokens, 8.0)


def round_trip(*cells):
    schema, block = blocks.pack_cells(cells, EMPTY)
    return blocks.unpack(block, schema)


def test_a_step_is_the_same_after_it_was_stored():
    row = StepRow(3, "trainer", 1.0, 5.0, ("2",), 0.25, (cell(), cell("1", response=64.0)))
    stored = blocks.step_row(3, "trainer", (1.0, 5.0), ("2",), 0.25, round_trip(*row.cells))
    assert stored == row


def test_a_value_that_one_rank_lacks_is_missing_and_not_zero():
    rows = round_trip(cell(), cell("1", response=64.0))
    assert "tokens:response" not in rows["0"]
    assert rows["1"]["tokens:response"] == 64.0


def test_a_rank_of_the_schema_that_is_not_in_the_step_has_no_cell():
    schema, block = blocks.pack_cells([cell("1")], Schema(("0", "1"), ("wall",)))
    assert [found.rank for found in blocks.cells_of(blocks.unpack(block, schema))] == ["1"]


def test_ranks_with_other_names_share_a_block():
    schema, _ = blocks.pack_cells([cell("0", prompt=2.0, response=4.0), cell("1")], EMPTY)
    cells = cell("0", response=4.0, prompt=2.0), cell("1", response=8.0)
    same, block = blocks.pack_cells(cells, schema)
    assert same is schema
    assert blocks.cells_of(blocks.unpack(block, schema)) == cells


def test_a_schema_grows_only_by_names_that_are_new():
    schema = Schema(("0",), ("wall", "idle"))
    assert schema.extended(("0",), ("idle",)) is schema
    assert schema.extended(("1",), ("wall", "stage:x")) == Schema(
        ("0", "1"), ("wall", "idle", "stage:x")
    )


def test_a_block_is_little_endian_float32_by_rank_and_column():
    schema, block = blocks.pack_scalars({"a": 1.0, "b": 2.0}, EMPTY)
    assert schema == Schema(("",), ("a", "b"))
    assert block == struct.pack("<2f", 1.0, 2.0)
    assert blocks.block_value(block, 1) == 2.0


@pytest.mark.parametrize("block", [None, b"", b"\x00\x00", struct.pack("<f", float("nan"))])
def test_sql_gets_null_for_a_value_that_is_not_there(block):
    assert blocks.block_value(block, 0) is None


def test_a_damaged_block_is_an_error():
    with pytest.raises(ValueError, match="does not match"):
        blocks.unpack(b"\x00" * 8, Schema(("0",), ("wall",)))
