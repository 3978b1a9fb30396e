"""One file per incident, private, bounded, and there when the job and the agent are gone."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hang_scene import Rank, Scene, hold_in, staged

from dfx_agent.agent.stored import evidence
from dfx_agent.agent.stored.evidence import MAX_FILES, EvidenceFiles
from dfx_agent.exporters.evidence_page import of_incident
from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack


class Kept:
    """A hang scene and the evidence that is kept of it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.evidence = EvidenceFiles(str(scene.folder))

    def look(self, seconds_later: float) -> None:
        self.scene.look(seconds_later)
        self.evidence.observe(self.scene.watch.watched(self.scene.agent._runs["r"]))

    def files(self) -> list[Path]:
        return evidence.latest_files(str(self.scene.folder))

    def document(self, outcome: str = "open") -> dict:
        """The only file as soon as it has this outcome."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            found = [json.loads(path.read_text()) for path in self.files()]
            if found and found[0]["outcome"] == outcome:
                assert len(found) == 1
                return found[0]
            time.sleep(0.01)
        raise AssertionError(found)


@pytest.fixture
def kept(dfx_dir, monkeypatch) -> Iterator[Kept]:
    monkeypatch.setattr(evidence, "dump_with_py_spy", lambda pid: None)
    with staged(dfx_dir) as scene:
        stored = Kept(scene)
        yield stored
        stored.evidence.close()


def hang(kept: Kept) -> list[Rank]:
    ranks = kept.scene.warm_up()
    ranks[2].enters("backward")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    for rank in (0, 1, 3):
        ranks[rank].writes_stacks("main", "all_reduce")
    return ranks


def test_nothing_is_written_of_a_sound_run(kept):
    kept.scene.warm_up()
    kept.look(1)
    assert not (kept.scene.folder / "evidence").exists()


def test_a_hang_is_stored_with_everything_that_was_open(kept):
    ranks = hang(kept)
    kept.look(14)
    document = kept.document()
    assert document["verdict"]["ranks"] == ["2"]
    assert document["end_seconds"] is None
    opened = {
        rank["rank"]: [span["name"] for span in rank["inflight"]]
        for rank in document["run"]["ranks"]
    }
    assert opened == {**{rank: ["all_reduce@0"] for rank in "013"}, "2": ["backward"]}
    places = {place["rank"]: place for place in document["places"]}
    assert places["0"]["last_collective"] == {"0": 5}
    assert places["2"]["last_collective"] == {"0": 4}
    assert places["2"]["pid"] == ranks[2].owner.pid
    assert places["2"]["stacks_from"] == "no stacks"
    assert document["stacks"] == [
        {"ranks": ["0", "1", "3"], "frames": ["main (train.py:7)", "all_reduce (train.py:7)"]}
    ]
    assert len(document["run"]["steps"]) == 3
    assert kept.files()[0].name.startswith("r-20")
    assert kept.files()[0].name.endswith("-hang.json")


def test_the_last_collectives_of_the_flight_recorder_are_stored(kept):
    ranks = hang(kept)
    ranks[0].writes_flight(("broadcast", 4, True), ("all_reduce", 8, False))
    kept.look(14)
    kept.document()
    ranks[0].path.with_suffix(".flight").unlink()
    kept.evidence.close()
    document = kept.document("agent ended")
    places = {place["rank"]: place["recorded_collectives"] for place in document["places"]}
    assert places["2"] == []
    latest, oldest = places["0"]
    assert (latest["operation"], latest["tensors"], latest["sequence"], latest["is_finished"]) == (
        "all_reduce", "[8] float32", 2, False,
    )  # fmt: skip
    assert (oldest["operation"], oldest["is_finished"]) == ("broadcast", True)
    html = of_incident(evidence.DOCUMENT.loaded(document))
    assert "all_reduce [8] float32, #2 of group 0 (default_pg), issued 0 s before, not fin" in html
    assert any(line.startswith("flight recorder") for line in document["verdict"]["evidence"])


def test_it_is_private(kept):
    hang(kept)
    kept.look(14)
    kept.document()
    (file,) = kept.files()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_end_is_written_into_the_same_file(kept):
    ranks = hang(kept)
    kept.look(14)
    kept.document()
    ranks[2].leaves()
    for rank in ranks:
        if rank.open_slots:
            rank.leaves()
        rank.took_part("all_reduce@0", 5)
        rank.writes_stacks("main", "next_epoch")
    kept.look(0)
    document = kept.document("over")
    assert document["end_seconds"] >= document["begin_seconds"]
    assert document["verdict"]["ranks"] == ["2"]
    assert document["stacks"][0] == {
        "ranks": ["0", "1", "3"],
        "frames": ["main (train.py:7)", "all_reduce (train.py:7)"],
    }


def test_a_job_that_is_killed_leaves_its_evidence(kept):
    ranks = hang(kept)
    kept.look(14)
    kept.document()
    for rank in ranks:
        rank.dies()
    kept.look(15)
    assert kept.document("job ended")["verdict"]["ranks"] == ["2"]


def test_an_agent_that_ends_says_so(kept):
    hang(kept)
    kept.look(14)
    kept.evidence.close()
    assert kept.document("agent ended")["stacks"] != []


def test_stacks_that_come_late_are_added(kept, monkeypatch):
    ranks = hang(kept)
    kept.look(14)
    kept.document()
    ranks[2].writes_stacks("main", "sleep")
    monkeypatch.setattr(evidence, "_SETTLED_SECONDS", 0.0)
    kept.look(15)
    deadline = time.monotonic() + 10
    while len(kept.document()["stacks"]) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [group["ranks"] for group in kept.document()["stacks"]] == [["0", "1", "3"], ["2"]]


def test_a_rank_that_wrote_no_stacks_is_asked_with_py_spy(kept, monkeypatch):
    asked: list[int] = []

    def dump(pid: int) -> ProcessStacks:
        asked.append(pid)
        frames = (Frame("train.py", 7, "stopped"),)
        main = ThreadStack("MainThread", pid, is_main=True, frames=frames)
        return ProcessStacks("py-spy", None, (main,))

    monkeypatch.setattr(evidence, "dump_with_py_spy", dump)
    monkeypatch.setattr(evidence, "_SETTLED_SECONDS", 0.0)
    ranks = hang(kept)
    kept.look(14)
    kept.look(15)
    deadline = time.monotonic() + 10
    while len(kept.document()["stacks"]) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    kept.evidence.close()
    document = kept.document("agent ended")
    assert asked == [ranks[2].owner.pid]
    assert [place["stacks_from"] for place in document["places"]] == ["guest"] * 2 + [
        "py-spy",
        "guest",
    ]


def test_only_the_last_files_are_stored(kept):
    folder = kept.scene.folder / "evidence"
    folder.mkdir(mode=0o700)
    for number in range(MAX_FILES + 5):
        path = folder / f"old-{number}-hang.json"
        path.write_text("{}")
        os.utime(path, (number, number))
    hang(kept)
    kept.look(14)
    deadline = time.monotonic() + 10
    while len(kept.files()) != MAX_FILES and time.monotonic() < deadline:
        time.sleep(0.01)
    names = [path.name for path in kept.files()]
    assert len(names) == MAX_FILES
    assert names[0].startswith("r-")
    assert "old-5-hang.json" not in names
    assert "old-24-hang.json" in names


def test_a_folder_that_is_not_private_is_not_written_to(kept, tmp_path):
    (kept.scene.folder / "evidence").symlink_to(tmp_path)
    hang(kept)
    kept.look(14)
    kept.evidence.close()
    assert list(tmp_path.iterdir()) == []


def test_evidence_that_cannot_be_written_is_a_problem_until_it_can(kept):
    folder = kept.scene.folder / "evidence"
    folder.write_text("in the way")
    hang(kept)
    kept.look(14)
    problem = wait_for(lambda: kept.evidence.problem)
    assert problem.kind == "evidence"
    assert problem.message.startswith(f"cannot write the evidence of a hang of r into {folder}: ")
    assert not problem.line.startswith("refused")
    folder.unlink()
    kept.evidence.close()  # written once more: the agent ends
    assert kept.evidence.problem is None
    assert len(kept.files()) == 1


def wait_for(look):
    deadline = time.monotonic() + 10
    while not (seen := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return seen


def test_files_are_found_by_run_and_kind(dfx_dir):
    folder = dfx_dir / "evidence"
    folder.mkdir(mode=0o700)
    for name in ("a_b-20261121T101500-hang", "a_b-20261121T101501-crash", "c-1-hang"):
        (folder / f"{name}.json").write_text("{}")
    assert len(evidence.latest_files(str(dfx_dir))) == 3
    (found,) = evidence.latest_files(str(dfx_dir), "a b", "hang")
    assert found.name == "a_b-20261121T101500-hang.json"
    assert evidence.latest_files(str(dfx_dir / "none")) == []


def test_names_of_runs_do_not_leave_the_folder(dfx_dir):
    folder = dfx_dir / "evidence"
    folder.mkdir(mode=0o700)
    for run in ("../../etc/x", "..", "", "a b\n/c"):
        assert evidence._file_name(run) not in {"", ".", ".."}
        assert "/" not in evidence._file_name(run)
