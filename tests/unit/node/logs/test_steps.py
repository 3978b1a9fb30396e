"""Which key is the step, which records are one row, and where another attempt begins."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.node.logs.run import Notes
from dfx_agent.node.logs.steps import with_steps


def rows_of(records, step_key=None):
    notes = Notes()
    return list(with_steps([dict(record) for record in records], notes, step_key)), notes


def steps_of(records):
    return [step for step, _ in rows_of(records)[0]]


def counted(key, steps, **more):
    """Records of a reward that counts in this key."""
    return [{key: float(step), "reward": i / 8, **more} for i, step in enumerate(steps)]


# --------------------------------------------------------------------------------- which key it is


@pytest.mark.parametrize(
    ("records", "key"),
    [
        (counted("step", range(9), _step=7.0), "step"),
        (counted("training/global_step", range(9)), "training/global_step"),
        (counted("Iteration", range(9)), "Iteration"),
        (counted("update", range(0, 90, 10)), "update"),
        (counted("train/iter", range(9)), "train/iter"),
        (counted("Train Step", range(9)), "Train Step"),
        (counted("episode", range(9), epoch=1.0), "episode"),
        (counted("epoch", range(9)), "epoch"),
        (counted("time/iterations", range(9), **{"train/n_updates": 10.0}), "time/iterations"),
        # no name of a step: the one that behaves so
        (counted("n", range(5, 50, 5), max_len=512.0, num_ok=3.0), "n"),
        # a step that never rises
        ([{"step": 0.0, "iter": float(i), "reward": 0.5} for i in range(9)], "iter"),
        # whole numbers that do not count
        ([{"length": float(400 + i * 37 % 50), "reward": 0.5} for i in range(9)], None),
        ([{"time": float(i), "reward": 0.5} for i in range(9)], None),
        ([{"episodes": float(i % 2), "reward": 0.5} for i in range(9)], None),
        (counted("lr", [0.5, 1.5, 2.5, 3.5, 4.5]), None),
    ],
)
def test_the_step_is_the_key_that_counts(records, key):
    rows, notes = rows_of(records)
    assert notes.is_counted == (key is None)
    counts = range(len(records)) if key is None else [int(record[key]) for record in records]
    assert [step for step, _ in rows] == list(counts)


def test_a_step_by_behaviour_is_said_and_the_map_gives_the_same():
    records = counted("sim/tick", range(3, 40, 4))
    rows, notes = rows_of(records)
    assert [step for step, _ in rows] == list(range(3, 40, 4))
    assert notes.guessed == {"step": "sim/tick"}
    assert rows_of(records, "sim/tick")[0] == rows


def test_without_a_step_rows_are_counted_and_that_is_said():
    rows, notes = rows_of([{"reward": 0.5}, {"reward": 0.25}])
    assert [step for step, _ in rows] == [0, 1]
    assert notes.is_counted
    assert notes.lines == ["records without a step: counted from 0"]


def test_a_step_that_never_rises_is_not_read():
    rows, notes = rows_of([{"step": 5.0, "reward": i / 8} for i in range(10)])
    assert [step for step, _ in rows] == list(range(10))
    assert "step never rises: not read as the step" in notes.lines


# ------------------------------------------------------------------------------- one row or several


ROLLOUT, TRAIN, EVAL = {"reward": 1.0}, {"grad_norm": 2.0, "time": 1.0}, {"eval/acc": 3.0}


@pytest.mark.parametrize(
    "parts",
    [
        [(step, part) for step in range(20) for part in (ROLLOUT, TRAIN, EVAL)],
        # the rollout is five steps ahead of the update
        [pair for step in range(25) for pair in ((step, ROLLOUT), (step - 5, TRAIN | EVAL))],
        # the evaluation ends much later
        [pair for step in range(60) for pair in ((step, ROLLOUT | TRAIN), (step - 40, EVAL))],
    ],
)
def test_parts_of_one_step_are_one_row(parts):
    records = [{"step": float(step), **part} for step, part in parts if 0 <= step < 20]
    rows, notes = rows_of(records)
    assert [(step, set(row)) for step, row in rows] == [
        (step, {"reward", "grad_norm", "time", "eval/acc"}) for step in range(20)
    ]
    assert notes.lines == []


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        ([1, 2, 3, 4, 3, 4, 5, 6], [1, 2, 3, 4, 3, 4, 5, 6]),  # resumed at 3
        ([10, 20, 30, 10, 20, 30], [10, 20, 30, 10, 20, 30]),
        ([1, 2, 3, 1, 2, 1, 2, 3], [1, 2, 3, 1, 2, 1, 2, 3]),
        ([7, 8, 9, 0], [7, 8, 9, 0]),  # another attempt may have begun
        ([1, 2, 4, 3, 5, 6], [1, 2, 3, 4, 5, 6]),  # one row is late
        ([1, 2, 3, 4, 2, 5, 6], [1, 2, 3, 4, 5, 6]),  # one row is there twice
        ([4, 4, 5], [4, 5]),
    ],
)
def test_a_new_attempt_falls_back_and_rises_from_there(steps, rows):
    assert steps_of(counted("step", steps)) == rows


def test_two_attempts_are_not_mixed():
    first = [{"step": float(i), "reward": 1.0, "kl": 1.0} for i in range(10)]
    second = [{"step": float(i), "reward": 2.0, "kl": 2.0} for i in range(5, 12)]
    rows, _ = rows_of(first + second)
    assert [row["reward"] for _, row in rows] == [1.0] * 10 + [2.0] * 7
    assert all(row["reward"] == row["kl"] for _, row in rows)


def test_a_row_that_comes_too_late_is_counted_as_left_out():
    rows, notes = rows_of(counted("step", [*range(100), 3, 100, 101]))
    assert [step for step, _ in rows] == list(range(102))
    assert notes.num_left_out == 1
    assert "came too late" in notes.lines[0]


def test_steps_that_begin_again_with_each_epoch_are_counted_on():
    records = [
        {"epoch": float(epoch), "step": float(step), "reward": 0.5}
        for epoch in range(3)
        for step in range(20)
    ]
    rows, notes = rows_of(records)
    assert [step for step, _ in rows] == list(range(60))
    assert any("begins again with each epoch" in line for line in notes.lines)


@pytest.mark.parametrize("order", ["random", "reversed"])
def test_rows_in_no_order_are_sorted_and_that_is_said(order):
    records = counted("step", range(200))
    shuffled = records[::-1] if order == "reversed" else random.Random(3).sample(records, 200)
    rows, notes = rows_of(shuffled)
    assert rows == [(i, {"reward": i / 8}) for i in range(200)]
    assert notes.lines == ["the step is in random order: the rows are sorted by step"]


VALUES = st.sampled_from([0.0, 1.0, 2.0, 7.0, -1.0, 0.5, float("nan"), float("inf"), 1e300])
RECORDS = st.lists(
    st.dictionaries(st.sampled_from(["step", "iter", "epoch", "_step", "a", "b"]), VALUES),
    max_size=40,
)


@given(RECORDS)
def test_no_value_is_invented_whatever_the_records(records):
    values = {(key, repr(value)) for record in records for key, value in record.items()}
    rows, _ = rows_of(records)
    assert all(isinstance(step, int) for step, _ in rows)
    assert {(key, repr(value)) for _, row in rows for key, value in row.items()} <= values


@given(st.lists(st.integers(0, 30), max_size=40))
def test_every_step_that_was_reported_once_is_a_row(steps):
    """Without a step key that is doubted, and too few rows to be too late."""
    records = counted("step", steps)
    if len(set(steps)) > 1:
        assert set(steps_of(records)) == set(steps)


def test_two_runs_in_one_file_contradict_each_other_and_it_is_counted():
    """Their records alternate: of each step only the last can be read."""
    records = [{"step": float(step), "reward": value} for step in range(20) for value in (0.1, 0.9)]
    rows, notes = rows_of(records)
    assert len(rows) == 20
    assert notes.num_left_out == 20
    assert notes.lines == [
        "step 0 is reported again with other values: the last are read (19 more such)"
    ]


def test_the_same_values_twice_and_parts_of_a_step_are_no_contradiction():
    same = [{"step": float(i // 2), "reward": i // 2 / 8} for i in range(40)]
    parts = [
        {"step": float(i // 2), **({"reward": 0.1} if i % 2 else {"loss": 0.2})} for i in range(40)
    ]
    for records in (same, parts):
        rows, notes = rows_of(records)
        assert len(rows) == 20
        assert notes.num_left_out == 0


def test_an_inner_loop_is_no_step():
    notes = Notes()
    records = [{"step": 1.0 + i % 4, "reward": i * i % 7.0} for i in range(48)]
    assert [step for step, _ in with_steps(records, notes)] == list(range(48))
    assert notes.lines[0] == "step begins again every few rows: not read as the step"


def test_a_few_attempts_of_the_same_length_stay_attempts():
    records = [{"step": float(i % 6), "reward": 0.5 * i} for i in range(42)]
    assert [step for step, _ in with_steps(records, Notes())] == [i % 6 for i in range(42)]
