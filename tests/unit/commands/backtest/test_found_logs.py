"""Which files of a folder are read: nothing of it is passed over in silence."""

from __future__ import annotations

import os

from dfx_agent.commands.backtest.found_logs import find_logs
from dfx_agent.commands.backtest.report import lines

TABLE = "step,reward,kl\n1,0.5,0.1\n"


def test_links_are_followed_once_and_what_is_no_file_is_named(tmp_path):
    runs, folder = tmp_path / "runs", tmp_path / "links"
    runs.mkdir()
    folder.mkdir()
    (runs / "a.csv").write_text(TABLE)
    (folder / "run1").symlink_to(runs)
    (folder / "run1-again").symlink_to(runs)
    (folder / "loop").symlink_to(folder)
    (folder / "latest.log").symlink_to(tmp_path / "gone.log")
    (folder / ".cache").mkdir()
    os.mkfifo(folder / "pipe.log")
    found = find_logs([str(folder)])
    assert [path.resolve() for path in found.logs] == [runs / "a.csv"]
    reported = {os.path.relpath(path, folder): why for path, why in found.passed_over}
    assert reported.keys() == {"run1-again", "loop", "latest.log", ".cache", "pipe.log"}
    assert "read already" in reported["loop"]
    assert "pipe" in reported["pipe.log"]


def test_many_files_that_nobody_takes_for_a_log_hide_none_that_was_opened(tmp_path):
    for i in range(50):
        (tmp_path / f"model-{i}.safetensors").write_bytes(b"")
    passed_over = find_logs([str(tmp_path)]).passed_over
    shown = list(lines([], {}, [*passed_over, ("own.jsonl", "no key of it is known")]))
    assert "passed over: own.jsonl: no key of it is known" in shown
    told_twice = list(lines([], {}, [("a.log", "a.log is empty")]))
    assert "passed over: a.log: is empty" in told_twice
    assert "passed over, not opened: 50 .safetensors (--json names them)" in shown
