"""NaN in a table: no value, and never without a word."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from dfx_agent.node.logs.key_map import parse
from dfx_agent.node.logs.nan_cells import nan_lines
from dfx_agent.node.logs.reader import open_logs, read
from dfx_agent.node.logs.run import UnreadableLogError

ROWS = "1,0.5,0.1,nan\n2,NaN,0.2,nan\n3, nan ,0.3,1\n"


def table(tmp_path, text):
    path = tmp_path / "m.csv"
    path.write_text(text)
    return path


def test_nan_of_a_known_key_is_counted_and_said(tmp_path):
    run = read(table(tmp_path, "step,loss,kl,mine\n" + ROWS))
    assert run.rows[1] == (2, {"kl": 0.2})
    assert run.warnings == [
        "loss: 2 cells are NaN, taken as not reported",
        "1 other key: 2 cells are NaN, taken as not reported",
    ]


def test_a_key_that_an_export_spells_otherwise_or_the_user_names_is_known_too(tmp_path):
    flat = read(table(tmp_path, "step,actor_entropy,actor_ppo_kl,x\n" + ROWS))
    assert "actor_entropy: 2 cells are NaN, taken as not reported" in flat.warnings
    mine = read(table(tmp_path, "step,mine,kl,x\n" + ROWS), key_map=parse(["reward=mine"]))
    assert "mine: 2 cells are NaN, taken as not reported" in mine.warnings


def test_each_run_of_a_wandb_export_counts_its_own(tmp_path):
    header = '"Step","a - loss","a - kl","b - loss","b - kl"\n'
    first, second = open_logs(table(tmp_path, header + "1,nan,1,2,3\n2,nan,1,2,3\n"))
    assert len(list(first.rows())) == len(list(second.rows())) == 2
    assert first.warnings == ["loss: 2 cells are NaN, taken as not reported"]
    assert second.warnings == []


def test_a_table_of_nothing_else_says_it(tmp_path):
    with pytest.raises(UnreadableLogError, match="loss: 2 cells are NaN"):
        read(table(tmp_path, "step,loss\n1,nan\n2,nan\n"))


def test_nan_in_a_line_of_its_own_was_logged_and_is_a_value(tmp_path):
    run = read(table(tmp_path, "run_id,key,value,step\na,loss,nan,1\na,kl,0.5,1\n"))
    assert str(run.rows[0][1]["loss"]) == "nan"
    assert run.warnings == []


def test_an_intact_table_says_nothing(tmp_path):
    assert read(table(tmp_path, "step,loss,kl\n1,0.5,\n2,,0.1\n")).warnings == []


def test_of_many_keys_the_first_are_named_and_all_are_counted():
    lines = list(nan_lines(Counter({f"k{i}": 10 for i in range(100)}), lambda key: key > "k5"))
    assert len(lines) == 9
    assert lines[-1] == "92 other keys: 920 cells are NaN, taken as not reported"


def dense(first: int, last: int, loss: str, *, reward: str = "0.5") -> str:
    return "".join(f"{step},{loss},{reward},0.2,1e-6\n" for step in range(first, last))


DENSE = "step,loss,reward,kl,learning_rate\n"


def test_nan_in_a_column_that_had_a_value_in_each_row_is_one(tmp_path):
    """A collapse in a table: the loss is NaN from step 31 on, the reward goes on."""
    run = read(table(tmp_path, DENSE + dense(1, 31, "0.1") + dense(31, 41, "nan")))
    assert [math.isnan(values["loss"]) for _, values in run.rows] == [False] * 30 + [True] * 10
    assert run.warnings == []


def test_nan_in_a_row_of_another_kind_is_no_value(tmp_path):
    """As Lightning writes an evaluation between training rows: all columns of training are NaN."""
    evaluation = "31,nan,nan,nan,1e-6\n"
    run = read(table(tmp_path, DENSE + dense(1, 31, "0.1") + evaluation + dense(32, 60, "0.1")))
    assert not any(math.isnan(value) for _, values in run.rows for value in values.values())


def test_nan_in_a_column_that_is_often_empty_is_no_value(tmp_path):
    rows = "".join(dense(step, step + 1, "0.1" if step % 5 == 0 else "nan") for step in range(60))
    run = read(table(tmp_path, DENSE + rows))
    assert sum("loss" in values for _, values in run.rows) == 12


def test_rows_with_garbage_in_a_column_of_numbers_are_counted(tmp_path):
    broken = "".join(f"{step},#@!,?,x,1e-6\n" for step in range(31, 36))
    (log,) = open_logs(table(tmp_path, DENSE + dense(1, 31, "0.1") + broken + dense(36, 60, "0.1")))
    assert len(list(log.rows())) == 59
    assert log.num_left_out == 5


WITH_EVALUATIONS = "step,loss,reward,kl,learning_rate,eval_reward\n"


def evaluated(last: int, first_nan: int, nan: str, missing: str = "", every: int = 10) -> str:
    """Rows of training, and behind every tenth one of an evaluation."""
    text = WITH_EVALUATIONS
    for step in range(last):
        cells = nan if step >= first_nan else "0.1,0.5,0.2"
        text += f"{step},{cells},1e-6,{missing}\n"
        if step % every == 0:
            text += f"{step},{missing},{missing},{missing},1e-6,0.5\n"
    return text


def nan_steps(run, key="loss"):
    return [step for step, values in run.rows if math.isnan(values.get(key, 0.0))]


@pytest.mark.parametrize("nan", ["nan,nan,0.2", "nan,0.5,0.2", "NaN,nan,nan"])
@pytest.mark.parametrize("every", [2, 10])
def test_nan_to_the_end_is_found_between_rows_of_evaluations(tmp_path, nan, every):
    run = read(table(tmp_path, evaluated(60, 40, nan, every=every)))
    assert nan_steps(run) == list(range(40, 60))


@pytest.mark.parametrize("missing", ["", "nan"])
def test_a_table_with_evaluations_that_is_sound_has_no_nan(tmp_path, missing):
    run = read(table(tmp_path, evaluated(60, 99, "", missing)))
    assert nan_steps(run) == []
    assert sum("loss" in values for _, values in run.rows) == 60


def test_where_missing_is_written_as_nan_a_row_of_it_is_no_value(tmp_path):
    run = read(table(tmp_path, evaluated(60, 40, "nan,nan,nan", "nan")))
    assert nan_steps(run) == []


def test_a_log_that_begins_with_an_evaluation_or_changes_its_columns_is_read_on(tmp_path):
    first = "0,,,,1e-6,0.5\n" * 5
    text = evaluated(60, 40, "nan,0.5,0.2", every=99).removeprefix(WITH_EVALUATIONS)
    run = read(table(tmp_path, WITH_EVALUATIONS + first + text))
    assert nan_steps(run) == list(range(40, 60))
