"""What glibc keeps after a process has freed many small blocks, and what malloc_trim gives back."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from live_processes import demo_environment, started, until

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.node import memory as process_memory
from dfx_agent.node.host import memory

JOB = str(Path(__file__).parent / "jobs" / "freed_blocks.py")
MIB = 2**20

pytestmark = pytest.mark.skipif(
    not os.confstr("CS_GNU_LIBC_VERSION"), reason="another libc than glibc has no mallinfo2"
)


def told(agent: Agent):
    agent.poll()
    rows = [rank for run in agent.snapshot().runs for rank in run.ranks]
    return rows[0].host_memory.heap if rows and rows[0].host_memory else None


def test_trimmable_heap_is_what_malloc_trim_returns(tmp_path, monkeypatch):
    monkeypatch.setattr(process_memory, "_LOOK_EVERY_NS", 0)
    folder, go = tmp_path / "dfx", tmp_path / "go"
    folder.mkdir(mode=0o700)
    env = demo_environment(DFX_DIR=str(folder), DFX_AGENT="1", MALLOC_ARENA_MAX="2")
    with started([sys.executable, JOB, str(go)], tmp_path, env) as job:
        until(lambda: job.output.count("\n") == 1, f"the blocks are freed: {job.errors}", 60)
        freed = int(job.output)
        agent = Agent(Config(directory=str(folder)), reap=False)

        def keeps_much():
            now = told(agent)
            return now if now and (now.trimmable_bytes or 0) >= freed / 2 else None

        stored = until(keeps_much, "glibc keeps them", 60)
        assert freed <= stored.retained_bytes <= memory.process_bytes(job.pid).anonymous
        go.touch()
        until(lambda: job.output.count("\n") == 2, f"it has trimmed: {job.errors}", 60)
        given_back = int(job.output.split()[1])
        assert stored.trimmable_bytes == pytest.approx(given_back, rel=0.1)
        until(lambda: told(agent).retained_bytes < 32 * MIB, "nothing is kept any more", 60)
