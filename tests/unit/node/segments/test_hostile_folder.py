"""Odd files and strange records beside a healthy run: it is read, judged, shown and exported."""

from __future__ import annotations

import json
import math
import os
import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.node.segments.reader import Follower
from dfx_agent.snapshot import Snapshot
from dfx_agent.snapshot.document import Document
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import BLOCKING, COLLECTIVE, COUNT, LEDGER, STAGE, STEP, TOKENS

encode = Document(Snapshot).dumped
_INTEGERS = st.one_of(st.integers(0, 40), st.sampled_from([2**31, 2**32 - 1]))
_STEPS = st.one_of(st.integers(-6, 12), st.sampled_from([-(2**63), 2**63 - 1]))
_VALUES = st.one_of(
    st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 1.7e308, -1.0, 2.0**70])
)
_KINDS = st.integers(0, 20).flatmap(lambda k: st.sampled_from([k, k | BLOCKING, k | 0x8000]))
_NAMES = st.sampled_from(
    ["", "rollout", "rollout/ids", "all_reduce@0", "send@0", "prompt", 'a\n"\\\x1b', "é", "x/y"]
)
RECORDS = st.lists(st.tuples(_KINDS, _NAMES, _VALUES, _STEPS, _INTEGERS, _INTEGERS), max_size=30)


class Job:
    def __init__(self, folder: Path, run: str) -> None:
        identity = Identity(run=run, role="trainer", rank=0, world_size=1)
        self.segment = SegmentWriter(str(folder), identity, num_records=256)
        self.names: dict[str, int] = {"": 0}
        self.num_steps = 0

    def emit(self, kind: int, name: str, value: float, step: int, span: int, parent: int) -> None:
        if name not in self.names:
            self.names[name] = self.segment.add_name(name)
        now = time.monotonic_ns()
        self.segment.emit(now, now, value, step, span, parent, 3, kind, self.names[name])

    def passes(self) -> None:
        self.num_steps += 1
        self.emit(STEP, "", 0.0, self.num_steps, 0, 0)
        self.emit(STAGE, "backward", 0.0, self.num_steps, self.num_steps, 0)


def whole(agent: Agent, exporter: PrometheusExporter, healthy: Job) -> None:
    """The healthy run goes on everywhere; counters are numbers and not below 0."""
    for _ in range(3):
        healthy.passes()
        agent.poll()
    snapshot = agent.snapshot()
    run = next(run for run in snapshot.runs if run.run == "healthy")
    assert run.ranks[0].step >= healthy.num_steps - 1
    assert not run.faults
    assert {v.state for v in run.verdicts if v.kind == "hang"} == {"clear"}
    document = json.loads(encode(snapshot), parse_constant=pytest.fail)
    assert "healthy" in [run["run"] for run in document["runs"]]
    for family in text_string_to_metric_families(exporter.render(None)[0].decode()):
        if family.type == "counter":
            for sample in family.samples:
                assert sample.value >= 0, sample
    assert snapshot.agent.blind is None, snapshot.agent.blind


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(RECORDS)
def test_records_of_one_process_cost_no_other_run_anything(dfx_dir, records):
    for old in Path(dfx_dir).glob("*.seg"):
        old.unlink()
    healthy, strange = Job(dfx_dir, "healthy"), Job(dfx_dir, "strange")
    agent = Agent(Config(str(dfx_dir)), reap=False)
    exporter = PrometheusExporter(agent)
    for record in records:
        strange.emit(*record)
    strange.passes()
    whole(agent, exporter, healthy)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_a_count_that_is_no_number_is_reported_and_skipped(dfx_dir, value):
    healthy, strange = Job(dfx_dir, "healthy"), Job(dfx_dir, "strange")
    agent = Agent(Config(str(dfx_dir)), reap=False)
    for kind, name in ((LEDGER, "b/ids"), (COUNT, "micro_batches"), (TOKENS, "prompt")):
        strange.emit(kind, name, value, 1, 1, 1)
    strange.emit(COLLECTIVE | BLOCKING, "all_reduce@0", value, 1, 2, 0)
    whole(agent, PrometheusExporter(agent), healthy)
    row = next(run for run in agent.snapshot().runs if run.run == "strange")
    assert row.ranks[0].num_late_records >= 3
    assert not row.faults


def test_odd_files_are_reported_and_cost_nothing(dfx_dir):
    folder = Path(dfx_dir)
    healthy = Job(dfx_dir, "healthy")
    os.mkfifo(folder / "fifo.seg")
    (folder / "dir.seg").mkdir()
    (folder / "loop.seg").symlink_to(folder / "loop.seg")
    (folder / "x\n<img>\x1b[31m.seg").write_bytes(struct.pack("Q", 7))
    with open(os.fsencode(folder) + b"/\xff\xfe.seg", "wb") as odd:
        odd.write(b"dfxwire\n")
    for name in ("signals", "evidence"):
        os.mkfifo(folder / name)
    agent = Agent(Config(str(dfx_dir)))
    whole(agent, PrometheusExporter(agent), healthy)
    shown = [problem.path for problem in agent.snapshot().agent.problems]
    assert any(path.endswith("\\udcff\\udcfe.seg") for path in shown)
    agent.stop()


def test_a_file_that_cannot_be_opened_is_reported(dfx_dir, monkeypatch):
    healthy, _ = Job(dfx_dir, "healthy"), Job(dfx_dir, "strange")
    opened = Follower.__init__

    def init(self: Follower, path: str, *args: object) -> None:
        opened(self, path, *args)
        if self.identity.run == "strange":
            raise RuntimeError("no segment at all")

    monkeypatch.setattr(Follower, "__init__", init)
    agent = Agent(Config(str(dfx_dir)), reap=False)
    whole(agent, PrometheusExporter(agent), healthy)
    assert [p.kind for p in agent.snapshot().agent.problems] == ["strange"]
