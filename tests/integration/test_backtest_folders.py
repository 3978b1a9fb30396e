"""Folders of which not everything may be read: the rest is read, and what is not is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_backtest import as_csv, as_jsonl, steps
from test_faults import without_root_rights

DENIED = "cannot be read: Permission denied"


def backtest(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """As somebody who may read no more than the file modes say."""
    return subprocess.run(
        [*without_root_rights(), sys.executable, "-m", "dfx_agent", "backtest", *map(str, args)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """One run that may be read, one without r and x, one with r only, one behind a link."""
    folder = tmp_path / "runs"
    for name, mode in (("open", 0o755), ("shut", 0o000), ("unentered", 0o444)):
        (folder / name / "deeper").mkdir(parents=True)
        as_csv(folder / name / "deeper" / "m.csv.gz", steps(collapse=False))
        as_jsonl(folder / name / "m.jsonl", steps(collapse=False))
        (folder / name).chmod(mode)
    (folder / "link.csv").symlink_to(folder / "shut" / "deeper" / "m.csv.gz")
    yield folder
    for name in ("shut", "unentered"):
        (folder / name).chmod(0o755)


def test_what_may_not_be_read_is_named_and_the_rest_is_read(runs: Path):
    done = backtest("--json", runs)
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    read = {str(Path(run["file"]).relative_to(runs)) for run in result["runs"]}
    assert read == {"open/m.jsonl", "open/deeper/m.csv.gz"}
    reported = {entry["file"]: entry["reason"] for entry in result["summary"]["passed_over"]}
    named = ("shut", "unentered", "link.csv")
    assert reported == dict.fromkeys((str(runs / name) for name in named), DENIED)
    text = backtest(runs).stdout
    assert all(f"passed over: {runs / name}: {DENIED}" in text for name in named)


@pytest.mark.parametrize("name", ["shut", "unentered", "shut/deeper", "shut/m.jsonl"])
@pytest.mark.parametrize("more", [[], ["--format", "mlflow"], ["--format", "tensorboard"]])
def test_what_was_named_itself_and_may_not_be_read_is_one_line_and_exit_code_1(
    runs: Path, name: str, more: list[str]
):
    done = backtest(runs / name, *more)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"dfx-agent: cannot read {runs / name}: Permission denied"]


def test_the_others_that_were_named_are_read(runs: Path):
    done = backtest("--json", runs / "shut", runs / "open")
    assert done.returncode == 1
    assert sorted(run["rows"] > 0 for run in json.loads(done.stdout)["runs"]) == [False, True, True]


def test_keys_of_an_mlflow_run_that_may_not_be_read_are_named(tmp_path: Path):
    shut = tmp_path / "metrics" / "shut"
    shut.mkdir(parents=True)
    (tmp_path / "metrics" / "reward").write_text("1 0.5 0\n2 0.5 1\n")
    (tmp_path / "meta.yaml").touch()
    shut.chmod(0)
    (run,) = json.loads(backtest("--json", tmp_path).stdout)["runs"]
    shut.chmod(0o755)
    assert f"{shut} {DENIED}" in run["warnings"]


def test_a_folder_below_which_event_files_may_lie_is_named(tmp_path: Path):
    """`watch` gives the reader a folder that was not walked before."""
    shut = tmp_path / "shut"
    shut.mkdir(mode=0)
    program = "import sys; from dfx_agent.node.logs.reader import read; read(sys.argv[1])"
    done = subprocess.run(
        [*without_root_rights(), sys.executable, "-c", program, str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    shut.chmod(0o755)
    assert f"no events.out.tfevents.* file in {tmp_path} ({shut} {DENIED})" in done.stderr


def test_a_wandb_folder_is_judged_from_its_output_alone(tmp_path: Path):
    files = tmp_path / "wandb" / "run-1" / "files"
    files.mkdir(parents=True)
    as_jsonl(files / "output.log", steps(collapse=False))
    summary = files / "wandb-summary.json"
    summary.write_text('{"critic/score/mean": 0.5, "_step": 9}')
    binary = files.parent / "run-1.wandb"
    binary.write_bytes(b":W&B\x00\x00" + bytes(300))
    done = backtest("--json", tmp_path)
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert [run["file"] for run in result["runs"]] == [str(files / "output.log")]
    reported = {entry["file"]: entry["reason"] for entry in result["summary"]["passed_over"]}
    assert reported.keys() == {str(summary), str(binary)}
    assert "last values of a W&B run" in reported[str(summary)]
    assert "binary form, which is not read: export" in reported[str(binary)]
    for path in (summary, binary):
        named = backtest(path)
        assert named.returncode == 1
        assert named.stderr == f"dfx-agent: {path} {reported[str(path)]}\n"


def test_each_file_of_a_folder_that_holds_no_report_is_named_with_what_is_so(tmp_path: Path):
    files = {
        "empty.log": ("", "is empty"),
        "rows.csv": ("1,0.5,0.1\n2,0.5,0.1\n", "is a table with no header: name its columns"),
        "header.csv": ("step,reward,kl\n", "has a header and no row below it"),
        "a.ipynb": (json.dumps({"nbformat": 4, "cells": []}), "notebook without training output"),
        "events.out.tfevents.1": ("", "is empty"),
    }
    for name, (text, _) in files.items():
        (tmp_path / name).write_text(text)
    as_jsonl(tmp_path / "m.jsonl", steps(collapse=False))
    done = backtest(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for name, (_, why) in files.items():
        assert any(
            line.startswith("passed over: ") and name in line and why in line
            for line in done.stdout.splitlines()
        ), (name, done.stdout)
