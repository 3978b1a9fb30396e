"""Whatever stands in the records: what a scrape calls a counter is finite, from zero, and grows."""

from __future__ import annotations

import math
import tempfile
import time

from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.wire import Identity, SegmentWriter, layout, records

KINDS = sorted({value for name, value in vars(records).items() if name.isupper()
                and isinstance(value, int) and 0 < value <= records.KIND_MASK})  # fmt: skip
NAMES = (
    "tokens",
    "rollout",
    "all_reduce@0",
    "update/mask",
    "memory/cuda:0/ooms",
    "optimizer_steps",
)
SOON_NS = 10**9
LARGE = 2**62

words = st.integers(0, 40) | st.sampled_from([-LARGE, -1, LARGE])
values = st.floats() | st.sampled_from([math.nan, -math.inf, math.inf, -1.0, 1e308, 2.0**63])
rows = st.tuples(
    st.integers(-LARGE, SOON_NS) | st.integers(0, 1000), st.integers(-10, 10**6), values, words,
    st.integers(0, 40), st.integers(0, 40), st.integers(0, 3), st.sampled_from(KINDS),
    st.booleans(), st.sampled_from(NAMES),
)  # fmt: skip
NAN = (0, 1, math.nan, 1, 0, 0, 0, records.COUNT, False, "tokens")
FALLS = (0, 1, -5.0, 1, 0, 0, 0, records.TOKENS, False, "tokens")
LOSES = (0, 1, 1e308, 1, 1, 0, 0, records.COLLECTIVE, True, "all_reduce@0")
OPENS = (0, 0, 0.0, 0, 0, 0, 0, records.STAGE, False, "tokens")
UNREAD = (0, 0, -1.0, 0, 0, 0, 1, records.LEDGER, False, "tokens")


def counters(exporter: PrometheusExporter) -> dict[tuple, float]:
    families = text_string_to_metric_families(exporter.render(None)[0].decode())
    samples = [s for family in families if family.type == "counter" for s in family.samples]
    return {
        (s.name, *sorted(s.labels.items())): s.value
        for s in samples
        if s.name.startswith("dfx_") and s.name.endswith("_total")
    }


def write(segment: SegmentWriter, names: dict[str, int], row: tuple) -> None:
    offset, length, value, step, span, parent, thread, kind, blocks, name = row
    begin = max(0, time.monotonic_ns() + offset)
    end = max(0, begin + length)
    flagged = kind | (records.BLOCKING if blocks else 0)
    segment.emit(begin, end, value, step, span, parent, thread, flagged, names[name])


@example([[OPENS, OPENS, UNREAD]])
@example([[NAN], [FALLS], [LOSES, LOSES]])
@given(st.lists(st.lists(rows, max_size=12), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_counters_of_a_scrape(readings):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        agent, exporter = Agent(Config(folder)), None
        identity = Identity(run="r", role="trainer", rank=0, world_size=1)
        segment = SegmentWriter(folder, identity, num_records=layout.MIN_NUM_RECORDS)
        names = {name: segment.add_name(name) for name in NAMES}
        exporter, before = PrometheusExporter(agent), {}
        for reading in [*readings, [], []]:
            for row in reading:
                write(segment, names, row)
            agent.poll()
            now = counters(exporter)
            for series, value in now.items():
                assert math.isfinite(value), series
                assert value >= 0, series
                assert value >= before.get(series, 0.0), series
            assert before.keys() <= now.keys()
            assert agent.snapshot().agent.num_faults == {}
            before = now
        segment.finish()
        segment.close()
        agent._folder.close()
