"""Logs that are odd as files: several printing ranks, late reports, no mark, pipes, preambles."""

from __future__ import annotations

import json
import os

import pytest

from dfx_agent.commands.backtest.replay import replay_log
from dfx_agent.node.logs import lines
from dfx_agent.node.logs.key_map import parse
from dfx_agent.node.logs.reader import open_logs, read
from dfx_agent.node.logs.run import UnreadableLogError


def report(i: int, **more: object) -> str:
    return str({"loss": 0.1, "reward": i / 8, "kl": 0.01, "epoch": round(0.01 * i, 2)} | more)


def rewards(path, **how):
    return [values["reward"] for _, values in read(path, **how).rows]


def test_of_many_ranks_that_print_one_is_followed_from_beginning_to_end(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(
        f"[rank{rank}]: {report(i, reward=i + rank / 10)}\n" for i in range(9) for rank in range(8)
    ))  # fmt: skip
    assert rewards(path) == list(range(9))
    assert not any("followed from there" in line for line in read(path).warnings)


def test_two_that_print_the_same_with_a_report_between_are_one_job(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(
        f"{report(i)}\n{report(i - 1)}\n" if i else f"{report(i)}\n" for i in range(9)
    ))  # fmt: skip
    run = read(path)
    assert [step for step, _ in run.rows] == list(range(9))
    assert not any("resumed" in line for line in run.warnings)


def test_reports_that_begin_behind_thousands_of_progress_lines_are_found(tmp_path):
    bars = "".join(f"\rMap: {i}/9000 [00:01<00:02, 900 examples/s]" for i in range(9000))
    path = tmp_path / "train.log"
    path.write_text(bars + "\n" + "".join(f"{report(i)}\n" for i in range(4)))
    assert rewards(path) == [i / 8 for i in range(4)]
    verl = tmp_path / "verl.log"
    verl.write_text(bars + "\n" + "step:1 - critic/score/mean:0.5 - actor/entropy:0.1\n")
    assert read(verl).framework == "verl"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_the_rest_of_a_utf_16_file_that_was_split_has_no_mark(tmp_path, encoding):
    path = tmp_path / "train.log"
    path.write_bytes("".join(f"{report(i)}\r\n" for i in range(4)).encode(encoding))
    assert rewards(path) == [i / 8 for i in range(4)]


@pytest.mark.parametrize("above", ["sep=;\n", "# exported by hand\n\n# twice\n"])
def test_what_stands_above_the_header_is_no_header(tmp_path, above):
    path = tmp_path / "m.csv"
    path.write_text(above + "step;reward;kl\n1;0,5;0.1\n2;0,75;0.2\n")
    assert rewards(path) == [0.5, 0.75]


@pytest.mark.parametrize("axis", ["Relative Time (Process)", "Wall Time", "created"])
def test_a_wandb_export_over_time_holds_the_same_runs(tmp_path, axis):
    header = [axis, *(f"{run} - train/{key}" for run in "ab" for key in ("reward", "kl"))]
    cells = [["1.5", "1", "2", "", ""], ["2.5", "3", "4", "5", "6"]]
    path = tmp_path / "wandb.csv"
    path.write_text("\n".join(",".join(f'"{cell}"' for cell in row) for row in (header, *cells)))
    first, second = open_logs(path)
    assert (first.name, list(first.rows())) == (
        "a", [(0, {"reward": 1.0, "kl": 2.0}), (1, {"reward": 3.0, "kl": 4.0})],
    )  # fmt: skip
    assert (second.name, list(second.rows())) == ("b", [(0, {"reward": 5.0, "kl": 6.0})])


def test_a_pipe_is_reported_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "log")
    with pytest.raises(UnreadableLogError, match="pipe"):
        open_logs(tmp_path / "log")


def test_a_mapped_key_that_no_record_has_is_reported(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"step": {i}, "score": 0.5}}\n' for i in range(3)))
    reported = read(path, key_map=parse(["reward=scroe"])).warnings
    assert any("scroe is named by --map, and no record has it" in line for line in reported), (
        reported
    )
    assert any("score" in line.replace("scroe", "") for line in reported), reported
    assert not any(
        "named by --map" in w for w in read(path, key_map=parse(["reward=score"])).warnings
    )


@pytest.mark.parametrize(("named", "read_from"), [("nope", "mean_rew"), ("score", "score")])
def test_a_signal_is_said_to_be_read_from_a_key_that_the_log_has(tmp_path, named, read_from):
    path = tmp_path / "m.jsonl"
    rows = [{"step": i, "mean_rew": i % 7, "score": i % 5, "kl": 0.1} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (log,) = open_logs(path, key_map=parse([f"reward={named}"]))
    report = replay_log(log, {}, is_drawn=False)
    assert report.coverage.keys["reward"] == [read_from]
    reported = [line for line in report.warnings if line.startswith(f"{named} is named by --map")]
    assert len(reported) == (named == "nope")


def test_a_mapped_step_that_no_record_has_is_reported(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"step": {i}, "reward": 0.5}}\n' for i in range(3)))
    with pytest.raises(UnreadableLogError, match="nope is named by --map, and none of the first 3"):
        read(path, key_map=parse(["step=nope"]))


RECORDS = [{"step": i, "reward": i / 8, "kl": 0.01} for i in range(40)]


@pytest.mark.parametrize(
    "document",
    [
        RECORDS,
        {"log_history": RECORDS},
        {key: [record[key] for record in RECORDS] for key in RECORDS[0]},
    ],
    ids=["list", "history", "columns"],
)
def test_a_document_of_one_line_longer_than_any_line_is_read(tmp_path, monkeypatch, document):
    monkeypatch.setattr(lines, "MAX_LINE_CHARS", 500)
    path = tmp_path / "history.json"
    path.write_text(json.dumps(document))
    assert rewards(path) == [i / 8 for i in range(40)]


@pytest.mark.parametrize("heading", ["=== Update {} ===", "Epoch {}/40", "--- step {}: ---"])
def test_a_heading_says_the_step_of_the_lines_below_it(tmp_path, heading):
    path = tmp_path / "train.log"
    path.write_text("".join(
        f"{heading.format(i)}\nMean reward .......... {i / 8}\nKL ......... 0.01\n"
        for i in range(3, 12)
    ))  # fmt: skip
    found = [(step, row["signal/reward"]) for step, row in read(path).rows]
    assert found == [(i, i / 8) for i in range(3, 12)]


def test_json_lines_of_one_value_each_are_put_together(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(
        json.dumps({"metric": f"train/{name}", "value": value, "step": i, "ts": 7.5 + i}) + "\n"
        for i in range(5) for name, value in (("reward", i / 8), ("kl", 0.01))
    ))  # fmt: skip
    run = read(path)
    assert [(step, row["reward"], row["kl"]) for step, row in run.rows] == [
        (i, i / 8, 0.01) for i in range(5)
    ]


def test_a_key_below_a_place_that_no_framework_has_is_read_by_meaning(tmp_path):
    """AReaL's names fit whatever is in front of "/grad_norm"."""
    path = tmp_path / "m.jsonl"
    path.write_text("".join(
        json.dumps({"record": {"extra": {"step": i, "mean_reward": 0.5, "grad_norm": i / 8}}})
        + "\n" for i in range(5)
    ))  # fmt: skip
    assert [row["signal/grad_norm"] for _, row in read(path).rows] == [i / 8 for i in range(5)]
