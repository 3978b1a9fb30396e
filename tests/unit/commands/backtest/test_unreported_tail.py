"""A log that goes on without values is judged in part, and that is said."""

import json

import pytest

from dfx_agent.commands.backtest.replay import replay_log
from dfx_agent.commands.backtest.unreported_tail import UnreportedTail
from dfx_agent.node.logs.reader import open_logs


def warnings(path):
    (log,) = open_logs(path)
    return replay_log(log, {}, is_drawn=False).warnings


def test_a_tail_of_null_is_said(tmp_path):
    rows = [{"step": i, "reward": 0.5 + i % 3, "kl": 0.1} for i in range(50)]
    rows += [{"step": i, "reward": None, "kl": None} for i in range(50, 80)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert warnings(path) == [
        "the last 30 rows have no value of a signal: nothing is judged after step 49"
    ]


def test_blank_rows_at_the_end_of_a_table_are_said(tmp_path):
    text = "".join(f"{i},{0.5 + i % 3},0.1\n" for i in range(50)) + "50,,\n" * 30
    path = tmp_path / "a.csv"
    path.write_text("step,reward,kl\n" + text)
    assert warnings(path) == ["the last 30 rows of the table have no value"]


@pytest.mark.parametrize(
    ("rows", "is_said"),
    [
        ([True] * 20 + [False] * 5, True),
        ([True] * 20 + [False] * 4, False),
        ([True, False, False, False, False] * 9, False),
        ([True, False, False, False, False] * 9 + [False] * 6, True),
        ([False] * 20, False),
    ],
)
def test_rare_signals_and_a_summary_are_no_tail(rows, is_said):
    tail = UnreportedTail()
    for step, has_signal in enumerate(rows):
        tail.observe(step, {"reward"} if has_signal else set())
    assert bool(tail.lines) == is_said


def rows_that_lose(value, first):
    """Rows of which reward, loss and gradient norm stop, while KL goes on."""
    lost = {"reward": 0.5, "loss": 0.1, "grad_norm": 1.0}
    for i in range(100):
        others = {key: number + i % 3 for key, number in lost.items()} if i < first else value
        yield {"step": i, "kl": 0.1 + i % 3 / 100, **others}


@pytest.mark.parametrize("value", [{"reward": None, "loss": None, "grad_norm": None}, {}])
@pytest.mark.parametrize(("first", "is_said"), [(70, True), (95, True), (96, False), (100, False)])
def test_signals_that_stop_while_others_go_on_are_said(tmp_path, value, first, is_said):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_that_lose(value, first)))
    reported = [line for line in warnings(path) if "after step" in line]
    names = "gradient norm, reward and loss"
    assert reported == [f"{names} have no value after step {first - 1}"] * is_said


@pytest.mark.parametrize(
    ("has_loss", "is_said"),
    [
        (lambda step: step % 10 == 0, False),
        (lambda step: step % 40 == 39, False),
        (lambda step: step == 0, False),
        (lambda step: step in {10, 60, 70}, False),
        (lambda step: step >= 50, False),
        (lambda step: step < 50 and step % 10 == 0, True),
        (lambda step: 30 <= step < 60, True),
    ],
)
def test_a_signal_that_is_logged_every_so_often_has_not_stopped(has_loss, is_said):
    tail = UnreportedTail()
    for step in range(100):
        tail.observe(step, {"reward", "loss"} if has_loss(step) else {"reward"})
        tail.observe(step, set())
    last = max(step for step in range(100) if has_loss(step))
    assert tail.lines == [f"loss has no value after step {last}"] * is_said


def test_rows_of_each_signal_are_counted_over_changes_of_what_is_reported():
    tail = UnreportedTail()
    for step, names in enumerate(["a", "ab", "ab", "", "b", "ab", "a", "a"]):
        tail.observe(step, set(names))
    assert tail.num_rows_of == {"a": 6, "b": 4}
    tail.observe(8, {"b"})
    assert tail.num_rows_of == {"a": 6, "b": 5}
