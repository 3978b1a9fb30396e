"""A log that goes on without values is judged in part, and that is said."""

import json

import pytest

from dfx_agent.backtest.replay import replay_log
from dfx_agent.backtest.unreported_tail import UnreportedTail
from dfx_agent.ingest.key_map import NO_MAP
from dfx_agent.ingest.reader import open_logs


def warnings(path):
    (log,) = open_logs(path)
    return replay_log(log, NO_MAP, {}, is_drawn=False).warnings


def test_a_tail_of_null_is_said(tmp_path):
    rows = [{"step": i, "reward": 0.5 + i % 3, "kl": 0.1} for i in range(50)]
    rows += [{"step": i, "reward": None, "kl": None} for i in range(50, 80)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert warnings(path) == [
        "the last 30 rows have no value of a signal: nothing is judged behind step 49"
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
        tail.observe(step, has_signal=has_signal)
    assert bool(tail.lines) == is_said
