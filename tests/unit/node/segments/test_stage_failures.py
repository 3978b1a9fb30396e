"""A stage that an exception ended is counted, over a real segment."""

import time

import pytest

from dfx_agent.node.process import Process
from dfx_agent.node.segments.reader import Follower
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import FAILED, STAGE, WAIT


@pytest.fixture
def segment(tmp_path):
    writer = SegmentWriter(str(tmp_path), Identity(run="r", role="reward", rank=0), num_records=64)
    yield writer
    writer.close()


def test_failed_stages_are_counted_by_name_and_other_spans_are_not(segment):
    now, names = time.monotonic_ns(), {n: segment.add_name(n) for n in ("reward", "rollout")}
    spans = [("reward", STAGE | FAILED), ("reward", STAGE), ("reward", STAGE | FAILED),
             ("rollout", STAGE), ("rollout", WAIT | FAILED)]  # fmt: skip
    for number, (name, kind) in enumerate(spans, start=1):
        begin = now + number * 1000
        segment.emit(begin, begin + 500, 0.0, 1, number, 0, 1, kind, names[name])
    process = Process(Follower(segment.path))
    process.poll()
    assert process.counters == {"failures/reward": 2.0}
