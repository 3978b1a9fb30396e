"""Histories of trackers that are Parquet tables, written by pyarrow and read back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import parquet

from dfx_agent.node.logs.reader import open_logs, read
from dfx_agent.node.logs.run import UnreadableLogError

NUM_ROWS = 2_500


def written(path, **more):
    """As W&B's artifact "wandb-history": its own count, keys of some rows only, text beside."""
    table = {
        "_step": [2 * i for i in range(NUM_ROWS)],
        "train/global_step": [i if i % 2 == 0 else None for i in range(NUM_ROWS)],
        "train/reward": [i / NUM_ROWS if i % 2 == 0 else None for i in range(NUM_ROWS)],
        "train/kl": [0.01] * NUM_ROWS,
        "note": ["text"] * NUM_ROWS,
        **more,
    }
    parquet.write_table(pa.table(table), path, row_group_size=100)
    return path


def test_a_history_is_read_by_the_trainer_s_step(tmp_path):
    run = read(written(tmp_path / "0000.parquet"))
    assert run.framework == "trl"
    assert [step for step, _ in run.rows] == list(range(0, NUM_ROWS, 2))
    assert run.rows[3][1] == {"reward": 6 / NUM_ROWS, "kl": 0.01}


def test_lists_and_times_are_no_numbers_and_nan_is_one(tmp_path):
    file = written(
        tmp_path / "a.parquet",
        histogram=[[1.0, 2.0]] * NUM_ROWS,
        at=pa.array([1_700_000_000] * NUM_ROWS, pa.timestamp("s")),
        loss=[float("nan")] * NUM_ROWS,
    )
    values = read(file).rows[0][1]
    assert values.keys() == {"reward", "kl", "loss"}


@pytest.mark.parametrize("size", [10, 1_000, -9])
def test_a_file_that_is_cut_is_one_line(tmp_path, size):
    file = written(tmp_path / "cut.parquet")
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(UnreadableLogError, match=r"cannot read .*cut\.parquet"):
        list(open_logs(file)[0].rows())
