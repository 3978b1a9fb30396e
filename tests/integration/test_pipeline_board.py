"""The boards on pipelines, asked of a real Prometheus about the asynchronous demo."""

from __future__ import annotations

import math
import sys
import time

import pytest
from board_files import BOARDS, filled, panel_queries
from live_processes import DFX_AGENT, LiveAgent, demo_environment, started, until, unused_port
from test_prometheus import scraping

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

NUM_STEPS = 12
STEPS_SECONDS = 240.0
# of another board, which is tested with a job without engines
KV_CACHE = "KV cache of each replica, and its peak"
QUERIES = [
    q for q in panel_queries() if q.board in {"dfx-pipeline", "dfx-native"} or q.panel == KV_CACHE
]
NATIVE = {
    "metric": "dfx_turns", "counter": "dfx_stale_samples_total", "other": "dfx_signal_value",
    "other_counter": "dfx_micro_batches_total", "own": "dfx_host_cpu_ratio",
    "own_counter": "dfx_agent_polls_total", "histogram": "dfx_engine_queue_time_seconds_bucket",
}  # fmt: skip
# verl's rollouter and real engines tell these, and the demo has none; it sends no unknown key
UNTOLD = {
    ("Keys that are not mapped, with their latest value", "__auto"),
    ("Busy", "{{side}}, as the framework says"),
    ("Weight sync of each receiver", "{{replica}} loaded from {{source}}, as it says"),
    ("Weight sync of each receiver", "{{replica}} updated, as it says"),
    ("$histogram", "__auto"),
}
TOLD = [q for q in QUERIES if (q.panel, q.legend) not in UNTOLD]
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def live(prometheus_binary, tmp_path_factory):
    """(Prometheus, run) once the demo has made steps.

    From step 9 on receiver 1 is 3 s late; the orchestrator holds its loop for 0.3 s in each step.
    """
    folder = tmp_path_factory.mktemp("pipeline")
    port = unused_port()
    command = [*DFX_AGENT, "run", "--listen", f"127.0.0.1:{port}", "--", sys.executable]
    command += ["-m", "examples.async_rl", "--fault", "slow_weight_sync:3:9",
                "--fault", "blocked_loop:0.3"]  # fmt: skip
    environment = demo_environment(DFX_DIR=str(folder / "dfx"), TMPDIR=str(folder))
    with started(command, folder, environment) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        with scraping(prometheus_binary, folder, unused_port(), port) as prometheus:

            def is_warm():
                assert process.popen.poll() is None, process.errors
                rows = prometheus.query('max(dfx_step{role="trainer"})')
                return any(value > NUM_STEPS for _, value in rows)

            until(is_warm, f"{NUM_STEPS} steps", STEPS_SECONDS)
            (run,) = agent.snapshot()["runs"]
            yield prometheus, run["run"]


def num_values(prometheus, text, *, is_instant):
    if is_instant:
        return len(prometheus.query(text))
    now = time.time()
    rows = prometheus.get("/api/v1/query_range", query=text, start=now - 60, end=now, step=2)
    found = [float(value) for row in rows["result"] for _, value in row["values"]]
    return sum(map(math.isfinite, found))


@pytest.mark.parametrize("query", TOLD, ids=lambda q: f"{q.panel}:{q.legend}")
def test_every_query_returns_data(live, query):
    prometheus, run = live
    text = filled(query.text, run=run, **NATIVE)
    is_instant = query.is_instant
    until(lambda: num_values(prometheus, text, is_instant=is_instant), str(query), 60)


def shown(live, panel, legend=None):
    """[(labels, value)] in a panel now."""
    prometheus, run = live
    query = next(q for q in QUERIES if q.panel == panel and legend in (None, q.legend))
    return prometheus.query(filled(query.text, run=run))


def test_the_first_row_names_the_slow_receiver(live):
    def found():
        return [
            labels for labels, value in shown(live, "What holds it up")
            if labels["bound_by"] == "weight sync" and value > 1.5
        ]  # fmt: skip

    (labels,) = until(found, "weight sync is named", 60)
    assert (labels["component"], labels["unit"]) == (
        "weight transfer to rollout replica 1",
        "seconds",
    )


def test_weight_sync_is_apart_by_part_and_receiver(live):
    parts = {labels["part"] for labels, _ in shown(live, "Weight sync, part by part")}
    assert parts == {"pause", "gather", "transfer", "load", "resume"}
    sending = "transfer to {{receiver}}"
    rows = shown(live, "Weight sync of each receiver", sending)
    seconds = {labels["receiver"]: value for labels, value in rows}
    assert set(seconds) == {"0", "1"}
    assert seconds["1"] >= 3.0 > seconds["0"]


def test_a_native_metric_has_a_panel_for_what_the_run_has(live):
    prometheus, run = live
    board = BOARDS["dfx-native"]
    variables = {row["name"]: row for row in board["templating"]["list"]}
    everything = variables["class"]["options"][0]["value"]
    text = variables["metric"]["query"]["query"].replace("${class:raw}", everything)
    selector = text.removeprefix("label_values(").removesuffix(", __name__)").replace("$run", run)
    found = prometheus.get("/api/v1/series", **{"match[]": selector})
    names = {row["__name__"] for row in found}
    assert {"dfx_turn_seconds", "dfx_partial_rollout_ratio", "dfx_weight_sync_bytes"} <= names
    (panel,) = (p for p in board["panels"] if p.get("repeat") == "metric")
    for name in names:
        expression = filled(panel["targets"][0]["expr"], run=run, metric=name)
        assert prometheus.query(expression), name


def test_its_alert_fires_and_no_other_one_on_pipelines(live):
    others = {"DfxLearnerStarved", "DfxRolloutStale", "DfxEngineDegraded", "DfxRolloutAborted"}

    def names():
        return {labels["alertname"] for labels, _ in shown(live, "Alerts")}

    until(lambda: "DfxWeightSyncGrown" in names(), "the alert on weight sync", 120)
    assert not others & names()
