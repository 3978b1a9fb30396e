"""A log that is rotated or written anew while it is followed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dfx_agent.commands.watch import followed_log as _followed_log
from dfx_agent.commands.watch.followed_log import FollowedLog


def lines(*steps: int, shift: float = 0.0) -> str:
    return "".join(
        json.dumps({"step": s, "reward": s / 8 + shift, "kl": 0.1}) + "\n" for s in steps
    )


class Follower:
    """A followed log that was read until nothing more came."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.said: list[str] = []
        self.log = FollowedLog(path, "run", str(folder), self.said.append)

    def read(self) -> int:
        for _ in range(3):
            self.log.poll(lambda: None)
        return self.log.num_sent


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


@pytest.fixture
def follower(path, tmp_path, monkeypatch):
    monkeypatch.setattr(_followed_log, "_REST_PER_READ", 0.0)
    (tmp_path / "segments").mkdir()
    follower = Follower(path, tmp_path / "segments")
    yield follower
    follower.log.close()


def test_a_rotated_log_that_already_has_more_rows_is_read_from_its_first(follower, path):
    path.write_text(lines(*range(4)))
    assert follower.read() == 4
    path.rename(path.with_suffix(".1"))
    path.write_text(lines(*range(4, 10)))
    assert follower.read() == 6, "all of the new one"
    assert any("starts again" in line for line in follower.said)


def test_a_job_that_begins_anew_with_as_many_rows_is_another_attempt(follower, path):
    path.write_text(lines(*range(4)))
    follower.read()
    path.write_text(lines(*range(4), shift=0.5))
    follower.read()
    assert any("starts again" in line for line in follower.said)


def test_a_file_that_is_replaced_by_itself_and_more_goes_on(follower, path):
    path.write_text(lines(*range(4)))
    follower.read()
    whole = path.with_suffix(".new")
    whole.write_text(lines(*range(6)))
    os.replace(whole, path)
    assert follower.read() == 6
    assert follower.said == []


def test_a_first_row_that_is_written_in_parts_begins_nothing_anew(follower, path):
    path.write_text('{"step": 0, "reward": 0.5}\n')
    follower.read()
    path.write_text('{"step": 0, "reward": 0.5}\n{"step": 0, "kl": 0.1}\n' + lines(1, 2))
    assert follower.read() == 3
    assert follower.said == []


def test_a_note_is_said_again_only_when_its_count_has_grown_tenfold(follower, path):
    path.write_text("step,reward\n")
    for step in range(1, 25):
        with path.open("a") as file:
            file.write(f"{step},1.0\n{step},nan\n")
        follower.read()
    counts = [line.split("reward: ")[1].split()[0] for line in follower.said if "NaN" in line]
    assert counts == ["1", "2", "10"]


@pytest.mark.parametrize("text", ["", "no row yet\n", lines(0)])
def test_a_log_without_a_row_is_a_run_that_waits_for_one(follower, path, tmp_path, text):
    path.write_text(text)
    follower.log.poll(lambda: None)
    (segment,) = (tmp_path / "segments").glob("*.seg*")
    path.write_text(lines(*range(3)))
    assert follower.read() == 3
    assert list((tmp_path / "segments").glob("*.seg*")) == [segment]
