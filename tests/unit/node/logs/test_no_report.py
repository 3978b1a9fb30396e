"""Files without a report, and formats named wrongly: the error says what is so and what to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dfx_agent.node.logs.reader import AUTO, READERS, open_logs, read
from dfx_agent.node.logs.run import NotALogError, UnreadableLogError

EVENT_FILE = "events.out.tfevents.1.host"
CONSOLE = "".join(f"{{'loss': 0.1, 'reward': {i / 8}, 'kl': 0.01}}\n" for i in range(4))
NOTEBOOK = {"nbformat": 4, "cells": [{"cell_type": "code", "outputs": [{"text": "hello"}]}]}


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def reason(path: Path, named: str = AUTO) -> str:
    with pytest.raises(UnreadableLogError) as error:
        read(path, named)
    assert str(path) in str(error.value)
    return str(error.value).replace(str(path), "X")


@pytest.mark.parametrize("name", ["a.log", "a.csv", "a.ipynb", "a.parquet", EVENT_FILE])
@pytest.mark.parametrize("named", [AUTO, *READERS])
def test_an_empty_file_is_empty_whatever_its_name_and_format(tmp_path, name, named):
    assert reason(write(tmp_path / name, ""), named) == "X is empty"


@pytest.mark.parametrize("name", ["a.log", "a.csv.gz"])
def test_one_of_empty_lines_too_also_packed(tmp_path, name):
    assert reason(write(tmp_path / name, gzip.compress(b"\n \n"))) == "X is empty"


def test_one_that_is_damaged_from_its_beginning_is_not_called_empty(tmp_path):
    damaged = bytearray(gzip.compress(bytes(range(256)) * 400))
    damaged[20:] = bytes(len(damaged) - 20)
    for name in ("a.csv.gz", "a.log"):
        reported = reason(write(tmp_path / name, bytes(damaged)))
        assert "damaged" in reported or "cannot tell" in reported
        assert "empty" not in reported
    packed = gzip.compress(b"step,reward,kl\n" + bytes(range(256)) * 400)
    reported = reason(write(tmp_path / "b.csv.gz", packed[:30]))
    assert "cut off or damaged" in reported


@pytest.mark.parametrize("header", ["step,reward,kl", "run_id,key,value,step", "Step,a - reward"])
def test_a_table_with_nothing_but_its_header(tmp_path, header):
    assert (
        reason(write(tmp_path / "a.csv", f"{header}\n\n")) == "X has a header and no row below it"
    )


def test_a_folder_of_an_empty_event_file(tmp_path):
    write(tmp_path / EVENT_FILE, "")
    assert reason(tmp_path) == f"no step report in X ({EVENT_FILE} is empty; no scalar was logged)"


def test_a_notebook_without_training_output(tmp_path):
    reported = reason(write(tmp_path / "a.ipynb", json.dumps(NOTEBOOK)))
    assert reported == "X is a notebook without training output: save it after the run"


RIGHT = {
    "console": CONSOLE,
    "verl": "step:1 - actor/entropy:0.5\n",
    "jsonl": '{"step": 1, "kl": 0.5}\n',
    "trl": json.dumps({"log_history": [{"step": 1, "kl": 0.5}]}, indent=1),
    "csv": "step,reward,kl\n1,0.5,0.1\n",
    "notebook": json.dumps({"nbformat": 4, "cells": [{"outputs": [{"text": CONSOLE}]}]}),
}


# a dict of JSON is also one that was printed, and a notebook on one line an object of JSON
ALSO_READ_BY = {"jsonl": {"console"}, "notebook": {"jsonl"}}


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("named", READERS)
def test_where_a_wrong_format_is_named_the_right_one_is_said(tmp_path, named, right):
    path = write(tmp_path / "file", RIGHT[right])
    reported = ""
    try:
        assert read(path, named).rows
    except UnreadableLogError as error:
        reported = str(error)
    if reported:
        assert reported.startswith(f"no {named} report in {path}: it is ")
        assert reported.endswith(f", use --format {right}")
    else:
        assert named in {right, *ALSO_READ_BY.get(right, ())}


def test_a_console_log_of_trl_is_no_trainer_state(tmp_path):
    for first in ("", "[2026-11-22 10:00:00] INFO begin\n"):
        reported = reason(write(tmp_path / "a.log", first + CONSOLE), "trl")
        assert reported == "no trl report in X: it is a console log, use --format console"


def test_a_file_of_no_known_format_is_reported(tmp_path):
    reported = reason(write(tmp_path / "config.json", '{\n "hidden_size": 8\n}'), "trl")
    assert reported == "X has no log_history: is it a trainer_state.json?"


def test_a_log_that_no_step_was_read_of_is_still_none_to_a_folder(tmp_path):
    with pytest.raises(NotALogError):
        list(open_logs(write(tmp_path / "a.log", CONSOLE), "jsonl")[0].rows())


@pytest.mark.parametrize("text", ["[]", " [\n]\n", "null", '{"log_history": []}'])
def test_json_without_a_row_is_not_asked_for_its_format(tmp_path, text):
    reported = reason(write(tmp_path / "a.json", text))
    assert reported.startswith("X holds no rows")
    assert "--format" not in reported
