"""Every query of every board, asked of a real Prometheus: about the demo, and about 64 ranks.

The demo is real training on a CPU with four faults at once; what it lacks (devices, waits for data,
several nodes, a straggler) comes from scripted_job.py through the real wire, a collapse from
collapsing_job.py, and what only an off-policy job has from off_policy_job.py. The first row of the
right board must name each problem.
"""

import math
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from board_files import ROOT, annotation_queries, filled, panel_queries
from device_library import Script, build
from live_processes import (
    DEMO,
    TORCHRUN,
    demo_environment,
    job_environment,
    running,
    serving,
    started,
    until,
    unused_port,
)
from test_prometheus import Prometheus

NUM_RANKS, STRAGGLER = 64, 37
# A baseline needs 12 steps, a slope 8.
NUM_STEPS = 16
CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 2s}
rule_files: ["RULES"]
scrape_configs:
  - job_name: demo
    static_configs: [{targets: ["127.0.0.1:DEMO"]}]
  - job_name: scripted
    scrape_interval: 2s
    scrape_timeout: 2s
    static_configs: [{targets: ["127.0.0.1:SCRIPTED"]}]
"""
FAULTS = [word for fault in ("tokens_imbalance", "host_leak:4", "rollout_abort:0.3", "misalign")
          for word in ("--fault", fault)]  # fmt: skip
DEMO_RUN = {"run": "it", "role": "trainer", "lane": "0"}
SCRIPTED_RUN = {"run": "scripted", "role": "actor", "lane": "0"}
COLLAPSING_RUN = {"run": "collapsing", "role": "trainer", "lane": "0"}
OFF_POLICY_RUN = {"run": "off-policy", "role": "learner", "lane": "0"}
# The detector takes what lasts for 128 steps as normal: they must outlive the tests.
COLLAPSED_STEP_SECONDS = 12
# Heatmaps leave the cells with this value, or less, empty.
NOWHERE = -1e9
# of an asynchronous job, and of what frameworks send: test_pipeline_board.py
ELSEWHERE = {"dfx-pipeline", "dfx-native"}
# needs a rollout engine: test_pipeline_board.py
KV_CACHE = "KV cache of each replica, and its peak"
# needs a driver that reports the memory of each process: test_prometheus.py of the exporters
COMMUNICATION = "Communication buffers over time, an estimate"
QUERIES = [
    q
    for q in (*panel_queries(), *annotation_queries())
    if q.board not in ELSEWHERE and q.panel not in {KV_CACHE, COMMUNICATION}
]
# what is only true for a while comes first: a loaded machine takes 20 minutes for all of them
QUERIES.sort(key=lambda q: "Diverging" not in q.panel and q.legend != "nothing found")


def scripted_devices(folder):
    """Eight GPUs for an agent, one of them held down, by a library with NVML's interface."""
    script = Script(folder / "script")
    script.say(count=8, reasons__5=4, utilization__5=40, metric2__5=30)
    library = build(folder / "nvml", "nvidia")
    return {"LD_LIBRARY_PATH": str(library), "DFX_TEST_SCRIPT": str(script.path)}


def started_prometheus(stack, binary, folder, demo, scripted):
    config = folder / "prometheus.yml"
    config.write_text(
        CONFIG.replace("DEMO", str(demo.port))
        .replace("SCRIPTED", str(scripted.port))
        .replace("RULES", str(ROOT / "alert_rules" / "generated" / "*.rules.yaml"))
    )
    port = unused_port()
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    prometheus = Prometheus(stack.enter_context(started(command, folder)), port)
    until(prometheus.is_ready, "Prometheus is ready")
    return prometheus


@pytest.fixture(scope="module")
def prometheus(prometheus_binary, tmp_path_factory):
    """Once both jobs have made enough steps under its eyes."""
    folder = tmp_path_factory.mktemp("boards")
    scripted_env = job_environment(DFX_DIR=str(folder / "scripted"))
    demo_env = demo_environment(DFX_DIR=str(folder / "demo"), TMPDIR=str(folder))
    job = [sys.executable, str(Path(__file__).parent / "scripted_job.py")]
    collapsing = [sys.executable, str(Path(__file__).parent / "collapsing_job.py"),
                  str(COLLAPSED_STEP_SECONDS)]  # fmt: skip
    collapsing_env = {**scripted_env, "DFX_RUN": "collapsing", "DFX_ROLE": "trainer",
                      "CUDA_VISIBLE_DEVICES": "5"}  # fmt: skip
    # nobody listens: notifications that fail are counted
    demo_env["DFX_PEAK_TFLOPS"] = "0.1"  # no table has a peak of a CPU
    demo_env["DFX_WEBHOOK"] = f"http://127.0.0.1:{unused_port()}/"
    demo = [*TORCHRUN, "4", *DEMO, "--steps", "100000", "--checkpoint-every", "5", *FAULTS]
    with ExitStack() as stack:
        stack.enter_context(started([*job, str(NUM_RANKS), str(STRAGGLER)], folder, scripted_env))
        stack.enter_context(started(collapsing, folder, collapsing_env))
        for role in ("learner", "collector"):
            words = [sys.executable, str(Path(__file__).parent / "off_policy_job.py"), role]
            stack.enter_context(started(words, folder, {**scripted_env, "DFX_RUN": "off-policy"}))
        devices = {**scripted_env, **scripted_devices(folder)}
        scripted_agent = stack.enter_context(serving(folder, unused_port(), env=devices))
        demo_agent = stack.enter_context(running(folder, unused_port(), demo, demo_env))
        found = started_prometheus(stack, prometheus_binary, folder, demo_agent, scripted_agent)

        def has_steps():
            steps = dict.fromkeys(("it", "scripted"), 0.0)
            for labels, value in found.query("min by (run) (dfx_step)"):
                steps[labels["run"]] = value
            counted = found.query(f"count(dfx_rank_info) == {NUM_RANKS + 4 + 1 + 2}")
            return counted and min(steps.values()) >= NUM_STEPS

        until(has_steps, f"{NUM_STEPS} steps of both jobs in Prometheus", 120)
        diverging = 'dfx_signal_latched{run="collapsing"} == 1'
        until(lambda: found.query(diverging), "the collapse in Prometheus", 120)
        found.scripted_folder = scripted_env["DFX_DIR"]
        yield found


def num_values(prometheus, query, variables):
    """Finite values that Grafana would get for the last 20 s, or now."""
    text, now = filled(query.text, **variables), time.time()
    if query.is_instant:
        rows = prometheus.get("/api/v1/query", query=text, time=now)["result"]
        values = [row["value"] for row in rows]
    else:
        times = {"start": now - 20, "end": now, "step": 2}
        rows = prometheus.get("/api/v1/query_range", query=text, **times)["result"]
        values = [value for row in rows for value in row["values"]]
    return sum(NOWHERE < float(value) < math.inf for _, value in values)


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: f"{q.board}:{q.panel}:{q.legend}")
def test_every_query_returns_data(prometheus, query):
    runs = (DEMO_RUN, SCRIPTED_RUN, COLLAPSING_RUN, OFF_POLICY_RUN)

    def has_values():
        return any(num_values(prometheus, query, run) for run in runs)

    # a scrape that is too late on a busy machine leaves a gap
    until(has_values, f"values of {query}", 60)


def test_both_jobs_fill_the_boards_about_ranks(prometheus):
    """Four ranks and 64: a row for each."""
    drawn = [q for q in QUERIES if q.board == "dfx-ranks" and q.legend == "{{rank}}"]
    heat = [q for q in drawn if "topk" not in q.text]
    assert len(heat) >= 7
    for query in heat:
        for variables, num_ranks in ((DEMO_RUN, 4), (SCRIPTED_RUN, NUM_RANKS)):
            text = filled(query.text, **variables)
            ranks = [labels["rank"] for labels, _ in prometheus.query(text)]
            assert sorted(ranks) == sorted(map(str, range(num_ranks))), query


def first(board, panel, legend=None):
    return next(
        q for q in QUERIES
        if q.board == board and q.panel == panel and legend in (None, q.legend)
    )  # fmt: skip


def shown(prometheus, run, board, panel, legend=None):
    """[(labels, value)] in a panel now."""
    return prometheus.query(filled(first(board, panel, legend).text, **run))


@pytest.mark.parametrize("board", ["dfx-e2e", "dfx-ranks"])
def test_the_first_row_names_the_straggler(prometheus, board):
    rows = [labels for labels, _ in shown(prometheus, SCRIPTED_RUN, board, "Who and why")]
    # what the job reserves grows: a machine that takes two minutes to come here may find a leak
    assert {labels["kind"] for labels in rows} <= {"straggler", "memory"}, rows
    (labels,) = (labels for labels in rows if labels["kind"] == "straggler")
    assert (labels["kind"], labels["rank"]) == ("straggler", str(STRAGGLER))
    assert labels["cause"] == "slower at equal tokens"
    ((labels, seconds),) = shown(prometheus, SCRIPTED_RUN, board, "Lost per step")
    # 25 % of the 0.62 s that a rank works up to the end of its backward
    assert (labels["rank"], seconds) == (str(STRAGGLER), pytest.approx(0.155, rel=0.2))


def test_the_busiest_rank_differs_from_the_one_with_more_tokens(prometheus):
    """On a loaded machine a scrape comes late, and one rank has a step more in the window."""

    def tiles():
        panels = ("Most work", "Most tokens", "The eight busiest ranks, against the median")
        return [shown(prometheus, SCRIPTED_RUN, "dfx-ranks", panel) for panel in panels]

    def is_told_apart():
        work, tokens, busiest = tiles()
        most = max(busiest, key=lambda row: row[1], default=({"rank": ""}, 0))
        named = [labels["rank"] for labels, more in work if more > 0.15]
        return named == [most[0]["rank"]] == [str(STRAGGLER)] and [
            more < 0.02 for _, more in tokens
        ] == [True]

    until(is_told_apart, f"only work names rank {STRAGGLER}: {tiles()}", 60)


def test_the_first_row_names_the_rank_with_more_tokens(prometheus):
    """The last of four ranks gets one and a half times the prompts, the first half of them."""

    def is_named():
        rows = shown(prometheus, DEMO_RUN, "dfx-ranks", "Most tokens")
        return [labels["rank"] for labels, more in rows if more > 0.2] == ["3"]

    until(is_named, "rank 3 has the most tokens", 60)


def test_the_first_row_shows_the_leak_of_every_rank(prometheus):
    red = 2 * 2**20
    for legend in ("rank {{rank}}", "median rank"):
        wanted = "dfx-memory", "Host memory grows, per step", legend
        until(
            lambda wanted=wanted: any(v > red for _, v in shown(prometheus, DEMO_RUN, *wanted)),
            f"{legend} grows",
            60,
        )


def test_the_first_row_shows_responses_that_were_given_up(prometheus):
    until(
        lambda: any(
            ratio > 0.15
            for _, ratio in shown(prometheus, DEMO_RUN, "dfx-stability", "Responses", "aborted")
        ),
        "aborted responses are red",
        60,
    )


@pytest.mark.parametrize("board", ["dfx-e2e", "dfx-memory", "dfx-stability", "dfx-agent"])
def test_alerts_are_in_sight(prometheus, board):
    def names():
        return {labels["alertname"] for labels, _ in shown(prometheus, DEMO_RUN, board, "Alerts")}

    until(lambda: names() >= {"DfxRolloutAborted", "DfxDataMisaligned"}, "alerts", 60)


def test_the_first_row_says_that_a_collapsing_run_diverges(prometheus):
    board = "dfx-stability"
    (row,) = shown(prometheus, COLLAPSING_RUN, board, "Training")
    assert row[1] == 3, "DIVERGING"
    moved = shown(prometheus, COLLAPSING_RUN, board, "What moved first")
    assert {labels["symptom"] for labels, _ in moved} >= {"reward", "length"}


def test_the_first_row_says_that_a_real_training_diverges(prometheus, tmp_path_factory):
    """The learning rate of the demo jumps at step 30."""
    folder = tmp_path_factory.mktemp("diverging")
    env = demo_environment(DFX_DIR=prometheus.scripted_folder, DFX_RUN="diverging")
    job = [*TORCHRUN, "2", *DEMO, "--steps", "1000", "--fault", "divergence:30"]
    run = {"run": "diverging", "role": "trainer"}
    with started(job, folder, {**env, "TMPDIR": str(folder)}) as process:

        def is_named():
            assert process.popen.poll() is None, process.errors
            rows = shown(prometheus, run, "dfx-stability", "Training")
            return [value for _, value in rows] == [3]

        until(is_named, "DIVERGING in the first row", 180)


def test_stamps_of_every_stage_are_caught(prometheus):
    """The timeline's query sees each stage at each scrape; one comes every 2 s, or is too late."""
    text = filled(first("dfx-e2e", "Stages of each rank").text, **SCRIPTED_RUN)
    wanted = {"rollout", "reward", "forward", "backward", "optimizer", "weight_sync"}

    def are_caught():
        now = time.time()
        times = {"start": now - 60, "end": now, "step": 1}
        starts = {}
        for row in prometheus.get("/api/v1/query_range", query=text, **times)["result"]:
            if row["metric"]["rank"] == "5":
                stage = starts.setdefault(row["metric"]["stage"], set())
                stage.update(float(value) for _, value in row["values"])
        return set(starts) >= wanted and len(starts["rollout"]) >= 4

    until(are_caught, "each stage of rank 5, and four of its rollouts", 180)
