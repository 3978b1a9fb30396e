"""Many ranks under a small limit of open files: all are followed, with few descriptors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from dfx_agent.node.host.processes import Allowance
from dfx_agent.node.segments.reader import Follower
from dfx_agent.wire import Identity, SegmentError, SegmentWriter
from dfx_agent.wire.records import STAGE, STEP

NUM_RANKS = 2000
LIMIT = 256
AGENT = """
import json, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
agent = Agent(Config(sys.argv[1]), reap=False)
for line in sys.stdin:
    agent.poll()
    agent.poll()
    snapshot = agent.snapshot()
    rows = [rank for run in snapshot.runs for rank in run.ranks]
    print(json.dumps({
        "steps": [rank.step for rank in rows], "states": sorted({rank.state for rank in rows}),
        "num_descriptors": len(os.listdir("/proc/self/fd")),
        "problems": [p.message for p in snapshot.agent.problems],
        "faults": [f.reason for run in snapshot.runs for f in run.faults],
    }), flush=True)
"""


def writer(folder: str, rank: int) -> SegmentWriter:
    who = Identity(run="r", role="trainer", rank=rank, world_size=NUM_RANKS)
    return SegmentWriter(folder, who, num_records=256)


def step(segment: SegmentWriter, number: int) -> None:
    now = time.monotonic_ns()
    segment.emit(now, now, 0.0, number, 0, 0, 0, STEP, 0)
    segment.emit(now, now + 1, 0.0, number, number, 0, 1, STAGE, segment.add_name("forward"))


@pytest.mark.slow
@pytest.mark.timeout(900)  # at load 24 it took more than 300 s
def test_two_thousand_ranks_need_few_descriptors(tmp_path):
    folder = str(tmp_path)
    for rank in range(NUM_RANKS):
        segment = writer(folder, rank)
        step(segment, 1)
        segment.close()  # unmapped, and never said to have ended: this process lives
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, folder],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        for _ in range(2):
            agent.stdin.write("look\n")
            agent.stdin.flush()
            reported = json.loads(agent.stdout.readline())
            assert reported["problems"] == reported["faults"] == []
            assert reported["steps"] == [1] * NUM_RANKS
            assert reported["states"] == ["live"]
            assert reported["num_descriptors"] < LIMIT - 64
    finally:
        agent.communicate()


@pytest.fixture
def segment(tmp_path):
    segment = writer(str(tmp_path), 0)
    yield segment
    segment.close()


def test_records_that_are_not_stored_are_still_read(segment):
    before = len(os.listdir("/proc/self/fd"))
    follower = Follower(segment.path, allowance=Allowance(1))
    stored = Follower(segment.path)
    step(segment, 7)
    assert bytes(follower.poll().packed) == bytes(stored.poll().packed) != b""
    assert follower.name(1) == "forward"
    assert follower.is_quiet()
    assert follower.liveness() == "live"
    stored.finish()
    # that this process lives is asked by a look at each, without one for `follower`
    assert len(os.listdir("/proc/self/fd")) == before
    segment.finish()
    assert follower.liveness() == "exited"


def test_the_allowance_is_given_back(segment):
    allowance = Allowance(2)
    first, second = (Follower(segment.path, allowance=allowance) for _ in range(2))
    assert not allowance.take(1)
    first.finish()
    second.finish()
    assert allowance.take(2)
    assert not allowance.take(1)


def test_a_file_that_is_gone_or_another_is_no_silent_rank(segment, tmp_path):
    follower = Follower(segment.path, allowance=Allowance(0))
    os.rename(segment.path, tmp_path / "kept-elsewhere")
    with pytest.raises(SegmentError, match="removed while its process runs"):
        follower.poll()
    (tmp_path / os.path.basename(segment.path)).write_bytes(b"another")
    with pytest.raises(SegmentError, match="removed while its process runs"):
        follower.poll()
    assert follower.liveness() == "live"
    assert follower.poll(is_last=True).packed == b""
    follower.finish()
