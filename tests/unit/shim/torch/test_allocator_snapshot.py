"""The allocator's snapshot: when the job allows it and the agent asks, and never else."""

from __future__ import annotations

import os
import pickle
import sys
import types
from pathlib import Path

import pytest

from dfx_agent.shim.torch import allocator_snapshot
from dfx_agent.shim.torch.allocator_snapshot import AllocatorSnapshot


class Job:
    """A process that uses a device, and what its guest's thread does once a second."""

    def __init__(self, folder: Path) -> None:
        self.stem = folder / "1-a"
        self.gauges: dict[str, float] = {}
        self.taken = {"segments": [{"device": 0, "total_size": 4}]}
        self.num_asked = 0
        self.cuda = types.ModuleType("torch.cuda")
        self.cuda.is_initialized = lambda: True  # type: ignore[attr-defined]
        self.cuda.memory = types.SimpleNamespace(_snapshot=self.ask)  # type: ignore[attr-defined]

    def ask(self) -> object:
        self.num_asked += 1
        return self.taken

    def look(self, keeper: AllocatorSnapshot) -> None:
        keeper.poll(self.gauges.__setitem__, f"{self.stem}.seg")

    def files(self) -> list[str]:
        return sorted(path.suffix for path in self.stem.parent.iterdir())


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    job = Job(tmp_path)
    for name in ("cuda", "npu", "xpu"):
        monkeypatch.delitem(sys.modules, f"torch.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "torch.cuda", job.cuda)
    return job


def test_it_is_written_once_for_each_request(job, monkeypatch):
    monkeypatch.setenv("DFX_MEMORY_SNAPSHOT", "1")
    keeper = AllocatorSnapshot()
    job.look(keeper)
    assert (job.files(), job.gauges) == ([], {"patch/memory_snapshot": 1.0})
    job.stem.with_suffix(".wanted").touch()
    job.look(keeper)
    job.look(keeper)
    assert (job.files(), job.num_asked) == ([".snapshot"], 1)
    file = job.stem.with_suffix(".snapshot")
    assert pickle.loads(file.read_bytes()) == job.taken
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_the_variable_nothing_is_looked_for(job, monkeypatch):
    monkeypatch.delenv("DFX_MEMORY_SNAPSHOT", raising=False)
    job.stem.with_suffix(".wanted").touch()
    job.look(AllocatorSnapshot())
    assert (job.files(), job.gauges, job.num_asked) == ([".wanted"], {}, 0)


@pytest.mark.parametrize("why", ["raises", "too large", "no device", "no room"])
def test_what_cannot_be_had_is_said_and_breaks_nothing(job, why, monkeypatch):
    monkeypatch.setenv("DFX_MEMORY_SNAPSHOT", "1")
    if why == "raises":
        job.cuda.memory = types.SimpleNamespace(_snapshot=lambda: 1 / 0)
    elif why == "too large":
        monkeypatch.setattr(allocator_snapshot, "MAX_BYTES", 8)
    elif why == "no room":
        full = os.open("/dev/full", os.O_WRONLY)
        monkeypatch.setattr(os, "rename", lambda *_: os.write(full, b"0"))
    else:
        job.cuda.is_initialized = lambda: False
    job.stem.with_suffix(".wanted").touch()
    job.look(AllocatorSnapshot())
    assert (job.files(), job.gauges) == ([], {"patch/memory_snapshot": -1.0})
