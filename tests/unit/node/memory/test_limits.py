"""Limits that a process meets: its control groups' and the host's, read when there is a need."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfx_agent.node.host.cgroup import MemoryGroup
from dfx_agent.node.memory import limits as reading
from dfx_agent.node.memory.limits import MemoryLimits

GIB = 2**30


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(reading, "available_bytes", lambda: 900 * GIB)
    monkeypatch.setattr(reading, "total_bytes", lambda: 1000 * GIB)


def group(folder: Path, limit: str, used_gib: float) -> MemoryGroup:
    folder.mkdir()
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{int(used_gib * GIB)}\n")
    return MemoryGroup(str(folder), is_v2=True)


def test_a_process_meets_its_groups_that_have_a_limit_and_the_host(host, tmp_path):
    own = group(tmp_path / "own", "max", 1)
    pod = group(tmp_path / "pod", str(16 * GIB), 8)
    full = group(tmp_path / "full", str(GIB), 2)
    known = [limit[1:] for limit in MemoryLimits().of((own, pod, full))]
    assert known == [
        (pod.path, 16 * GIB, 8 * GIB), (full.path, GIB, 0), ("", 1000 * GIB, 900 * GIB)
    ]  # fmt: skip


def test_a_host_that_does_not_say_has_no_limit(monkeypatch):
    monkeypatch.setattr(reading, "available_bytes", lambda: None)
    assert MemoryLimits().of(()) == ()


def test_what_is_free_is_read_again_after_a_second(host, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(reading.time, "monotonic", lambda: now[0])
    limits = MemoryLimits()

    def free(available_gib: int) -> int:
        monkeypatch.setattr(reading, "available_bytes", lambda: available_gib * GIB)
        (limit,) = limits.of(())
        return limit.free_bytes // GIB

    assert (free(10), free(9)) == (10, 10)
    now[0] += 1.0
    assert free(9) == 9
