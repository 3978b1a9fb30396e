"""Snapshots of allocators: whose is asked for, and where they end up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dfx_agent.agent.stored import snapshots
from dfx_agent.agent.stored.snapshots import AllocatorSnapshots
from dfx_agent.node.segments.owned_files import open_observed
from dfx_agent.snapshot import Verdict


class Run:
    """Of ranks whose jobs allow it, but for one."""

    def __init__(self, folder: Path, num_ranks: int = 4) -> None:
        self.folder, self.held = folder, open_observed(str(folder))
        self.run, self.judge = "my run", SimpleNamespace(memory=())
        self.processes = {("actor", str(n)): self.process(str(n)) for n in range(num_ranks)}

    def process(self, label: str) -> Any:
        def status(suffix: str) -> os.stat_result | None:
            return self.held.status(label + suffix)

        follower = SimpleNamespace(
            path=str(self.folder / f"{label}.seg"), folder=self.held, sibling_status=status
        )
        return Process(label, follower)

    def found(self, cause: str, *ranks: str) -> None:
        self.judge.memory = (Verdict("memory", "found", "actor", "", ranks=ranks, cause=cause),)

    def wanted(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.wanted"))

    def writes(self, label: str) -> None:
        self.folder.joinpath(f"{label}.wanted").unlink()
        self.folder.joinpath(f"{label}.snapshot").write_bytes(b"of " + label.encode())

    def kept(self) -> list[bytes]:
        return sorted(path.read_bytes() for path in self.folder.glob("evidence/*.pickle"))


class Process:
    is_living = True

    def __init__(self, label: str, follower: Any) -> None:
        self.label, self.follower = label, follower
        self.gauges = {} if label == "3" else {"patch/memory_snapshot": 1.0}


@pytest.fixture
def run(dfx_dir) -> Iterator[Run]:
    dfx_dir.mkdir(mode=0o700, exist_ok=True)
    run = Run(dfx_dir)
    yield run
    run.held.close()


def test_ranks_of_a_finding_are_asked_once_and_their_stacks_stored(run):
    keeper: Any = AllocatorSnapshots(str(run.folder))
    keeper.observe(run)
    assert run.wanted() == []
    run.found("device leak", "2", "1", "0")
    keeper.observe(run)
    assert run.wanted() == ["1.wanted", "2.wanted"]
    run.writes("2")
    for _ in range(2):
        keeper.observe(run)
    assert (run.wanted(), run.kept()) == (["1.wanted"], [b"of 2"])
    (file,) = run.folder.glob("evidence/*.pickle")
    assert file.name.startswith("my_run-")
    assert file.name.endswith("-memory-device_leak-actor-2.pickle")
    assert list(run.folder.glob("*.snapshot")) == []


def test_another_cause_is_asked_for_again_and_a_leak_of_the_host_never(run):
    keeper: Any = AllocatorSnapshots(str(run.folder))
    run.found("host leak", "0")
    keeper.observe(run)
    assert run.wanted() == []
    for cause in ("device leak", "device nearly full"):
        run.found(cause, "0")
        keeper.observe(run)
        run.writes("0")
        keeper.observe(run)
    assert len(run.kept()) == 2


def test_causes_that_take_turns_are_asked_for_once_each(run):
    keeper: Any = AllocatorSnapshots(str(run.folder))
    run.run = "r" * 300
    for cause in ("device leak", "device nearly full") * 2:
        run.found(cause, "0")
        keeper.observe(run)
        if run.wanted():
            run.writes("0")
            keeper.observe(run)
        else:
            assert len(run.kept()) == 2
    assert len(run.kept()) == 2


def test_whose_job_does_not_allow_it_is_not_asked(run):
    run.found("device leak", "3", "9")
    AllocatorSnapshots(str(run.folder)).observe(run)
    assert run.wanted() == []


def test_the_last_ones_are_stored(run, monkeypatch):
    monkeypatch.setattr(snapshots, "MAX_FILES", 2)
    keeper: Any = AllocatorSnapshots(str(run.folder))
    for label in ("0", "1", "2"):
        run.found("device leak", label)
        keeper.observe(run)
        run.writes(label)
        keeper.observe(run)
    assert len(run.kept()) == 2
