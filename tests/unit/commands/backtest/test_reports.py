"""What is said of a log that gives nothing to judge."""

from __future__ import annotations

import pytest

from dfx_agent.commands.backtest.replay import replay_log
from dfx_agent.commands.backtest.report import lines
from dfx_agent.node.logs.reader import open_logs


@pytest.mark.parametrize("line", ["{}", '{"step": 3}', '{"text": "hello"}'])
def test_records_without_a_number_are_said_to_have_none(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line}\n" * 20)
    (log,) = open_logs(path)
    report = replay_log(log, {}, is_drawn=False)
    assert not report.is_judged
    reported = "\n".join(lines([report], {}))
    assert "NOT JUDGED: no number in its " in reported
    assert "no key is known" not in reported
    assert "name its key" not in reported
