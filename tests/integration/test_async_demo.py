"""The asynchronous demo as people start it: seen whole, true about its faults, then gone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import DFX_AGENT, ROOT, LiveAgent, demo_environment, started, until

from dfx_agent.catalogue.learner_time import LEARNER_PARTS, learner_seconds
from dfx_agent.snapshot import TimeSplit

ASYNC_RL = [sys.executable, "-m", "examples.async_rl"]
LEARNING_SECONDS = 240.0
CLOCK_SECONDS = 1e-6
NATIVE = {
    "dfx_policy_lag_worst_versions",
    "dfx_partial_rollout_ratio",
    "dfx_queue_depth",
    "dfx_learner_wait_seconds",
    "dfx_tool_seconds",
    "dfx_weight_sync_bytes",
    "dfx_reward",
    "dfx_turn_seconds",
    "dfx_slot_usage_ratio",
    "dfx_mismatch_kl_lag_nats",
    "dfx_prompt_length_tokens",
    "dfx_response_clip_ratio",
    "dfx_ref_kl_nats",
    "dfx_score",
}
# 4 groups of 8 samples, dealt to two ranks
LEDGER = {(rank, boundary): 16.0 for rank in "01" for boundary in ("collector", "actor_update")}
LearnerSteps = dict[tuple[str, int], dict[str, float]]  # (rank, step) -> part -> seconds
# a machine that others load gets more: see ``until``
pytestmark = pytest.mark.timeout(3600)
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_queue_time_seconds",
}
GAUGES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:engine_sleep_state",
}
COUNTERS = {"vllm:num_preemptions", "vllm:generation_tokens"}
ROLES = {("rollout", "0"), ("rollout", "1"), ("trainer", "0"), ("trainer", "1")}


@contextmanager
def demo(folder: Path, port: int, *arguments: str) -> Iterator[LiveAgent]:
    command = [*DFX_AGENT, "run", "--listen", f"127.0.0.1:{port}", "--", *ASYNC_RL]
    command += ["--truth", str(folder / "truth.json")]
    environment = demo_environment(TMPDIR=str(folder))
    with started([*command, *arguments], folder, environment) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        yield agent


def truth(folder: Path) -> dict:
    path = folder / "truth.json"
    return json.loads(path.read_text()) if path.exists() else {"faults": [], "measured": {}}


def num_steps(folder: Path) -> int:
    """Steps that the learner's first rank has measured."""
    return len(truth(folder)["measured"].get("trainer 0", {}))


def server_urls(agent: LiveAgent) -> list[str]:
    """Where the rollout servers listen."""
    return [
        f"http://127.0.0.1:{connection.laddr.port}"
        for process in agent.process.descendants()
        if "examples.async_rl.server" in process.cmdline()
        for connection in process.net_connections("tcp4")
        if connection.status == psutil.CONN_LISTEN
    ]


def cached_calls(agent: LiveAgent) -> set[tuple[str, str]]:
    return {(row["role"], row["rank"]) for run in agent.snapshot()["runs"] for row in run["ranks"]}


def metrics(agent: LiveAgent) -> set[str]:
    """Catalogue names of the native values that have arrived."""
    rows = [row for run in agent.snapshot()["runs"] for row in run["scalars"]]
    return {row["metric"] for row in rows if row["metric"]}


def samples_of(agent: LiveAgent, name: str) -> list:
    families = text_string_to_metric_families(agent.get("/metrics"))
    return [sample for family in families for sample in family.samples if sample.name == name]


def ledger(agent: LiveAgent) -> dict[tuple[str, str], float]:
    """(rank, boundary) -> samples of the newest step."""
    found = samples_of(agent, "dfx_ledger_samples")
    return {(s.labels["rank"], s.labels["boundary"]): s.value for s in found}


def mismatches(agent: LiveAgent) -> list:
    return [s.labels for s in samples_of(agent, "dfx_ledger_mismatches_total") if s.value]


def unknown_keys(agent: LiveAgent) -> set[str]:
    """Keys of native values that the catalogue has no metric for."""
    rows = [row for run in agent.snapshot()["runs"] for row in run["scalars"]]
    return {row["key"] for row in rows if not row["metric"]}


def learner_parts(agent: LiveAgent) -> LearnerSteps:
    """(rank, step) -> where that step of the learner went, and its wall."""
    found = {}
    for row in (row for run in agent.snapshot()["runs"] for row in run["steps"]):
        for cell in row["cells"] if row["role"] == "trainer" else ():
            split = TimeSplit(**cell["split"])
            parts = learner_seconds("trainer", split, split)
            if parts is not None:
                found[cell["rank"], row["step"]] = {**parts, "wall": split.wall_seconds}
    return found


def check_parts(parts: dict[str, float], told: dict[str, float]) -> None:
    """No part has more than the learner measured around it; together they are the wall."""
    measured = {
        "collector_wait": told["collector_wait_seconds"],
        "replay_batch_wait": told["replay_batch_wait_seconds"],
        "rank_barrier": told["initial_barrier_wait_seconds"] + told["final_barrier_wait_seconds"],
        "sync_coordination": told["sync_coordination_wait_seconds"],
        "h2d": told["h2d_seconds"],
        "weight_sync": told.get("weight_sync_seconds", 0.0),
    }
    for part, seconds in measured.items():
        assert parts[part] <= seconds + CLOCK_SECONDS, part
    assert parts["train"] + parts["param_sync"] <= told["train_seconds"] + CLOCK_SECONDS
    assert min(parts["train"], parts["param_sync"], parts["rank_barrier"]) > 0
    assert sum(parts.values()) - parts["wall"] == pytest.approx(parts["wall"])


def seen_of_learner(agent: LiveAgent) -> LearnerSteps:
    """Steps of both ranks; a scrape has every part of them."""
    found: LearnerSteps = {}

    def look() -> bool:
        found.update(learner_parts(agent))
        return {rank for rank, _ in found} == {"0", "1"}

    until(look, "where a step of each rank of the learner went")
    shown = {sample.labels["part"] for sample in samples_of(agent, "dfx_rank_learner_seconds")}
    assert shown == set(LEARNER_PARTS)
    return found


def check_learner(seen: LearnerSteps, measured: dict) -> None:
    for (rank, step), parts in seen.items():
        check_parts(parts, measured[f"trainer {rank}"][str(step)])


def served(url: str) -> dict:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        return {
            family.name: family for family in text_string_to_metric_families(answer.read().decode())
        }


def test_a_healthy_run_is_seen_whole_and_leaves_nothing(dfx_dir, tmp_path, free_port):
    with demo(tmp_path, free_port(), "--steps", "8") as agent:
        until(lambda: num_steps(tmp_path) >= 3, "three steps", LEARNING_SECONDS)
        until(lambda: cached_calls(agent) > ROLES, "all roles are seen")
        assert {role for role, _ in cached_calls(agent)} == {"rollout", "trainer", "orchestrator"}
        urls = server_urls(agent)
        families = [served(url) for url in urls]
        until(
            lambda: metrics(agent) >= NATIVE,
            "native values are in the snapshot",
        )
        until(lambda: ledger(agent) == LEDGER, "both ranks show their batches at both boundaries")
        assert mismatches(agent) == []
        unknown = unknown_keys(agent)
        of_learner = seen_of_learner(agent)
        family_of_it = agent.process.descendants()

        assert agent.process.wait(LEARNING_SECONDS) == 0

    check_learner(of_learner, truth(tmp_path)["measured"])
    assert unknown == set()
    assert len(urls) == 2
    for of_server in families:
        assert of_server.keys() >= HISTOGRAMS | GAUGES | COUNTERS
        assert all(of_server[name].type == "histogram" for name in HISTOGRAMS)
        assert of_server["vllm:generation_tokens"].samples[0].value > 0
    assert num_steps(tmp_path) == 8
    assert_only_the_page_was_named(agent)
    assert psutil.wait_procs(family_of_it, timeout=10)[1] == []
    assert [path.name for path in tmp_path.glob("async_rl_*")] == []


def test_a_slow_replica_is_what_its_truth_says(dfx_dir, tmp_path, free_port):
    start, factor = 3, 4.0
    spec = f"slow_replica:1:{factor}:{start}"
    with demo(tmp_path, free_port(), "--steps", "6", "--fault", spec) as agent:
        assert agent.process.wait(LEARNING_SECONDS) == 0

    (fault,) = truth(tmp_path)["faults"]
    measured = truth(tmp_path)["measured"]
    slow = {int(step): values for step, values in measured["rollout 1"].items()}
    delays = {step: values["delay_seconds"] for step, values in slow.items() if step >= start}
    assert (fault["component"], fault["start_step"]) == ("rollout replica 1", start)
    assert {int(step) for step in fault["amount_by_step"]} == set(delays)
    whole = [delays[step] for step in sorted(delays)[:-1]]
    assert fault["per_step"] == pytest.approx(sum(whole) / len(whole))
    assert fault["per_step"] > 0
    for step, delay in delays.items():
        values = slow[step]
        assert delay >= (factor - 1) * values["busy_seconds"] * 0.99
        assert values["decode_seconds"] == pytest.approx(values["compute_seconds"] + delay)


def assert_only_the_page_was_named(agent: LiveAgent) -> None:
    (line,) = agent.process.errors.splitlines()
    assert line.startswith("dfx-agent: page http")


def test_an_interrupted_run_leaves_nothing(dfx_dir, tmp_path, free_port):
    with demo(tmp_path, free_port()) as agent:
        until(lambda: num_steps(tmp_path) >= 1, "a step", LEARNING_SECONDS)
        family_of_it = agent.process.descendants()
        agent.process.send(signal.SIGINT)
        code = agent.process.wait()

    assert code == 128 + signal.SIGINT
    assert_only_the_page_was_named(agent)
    assert psutil.wait_procs(family_of_it, timeout=10)[1] == []


def test_processes_whose_starter_is_killed_end_too(dfx_dir, tmp_path):
    with started(ASYNC_RL, tmp_path, demo_environment(TMPDIR=str(tmp_path))) as process:
        until(lambda: len(process.descendants()) == 5, "all processes")
        family_of_it = process.descendants()
        process.popen.kill()
        until(lambda: not any(map(is_running, family_of_it)), "their end", 60)


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fault", "slow_replica:5:2"], "there is no replica 5"),
        (["--fault", "straggler:0:2"], "no such fault"),
    ],
)
def test_wrong_use_is_one_line(arguments, message):
    ended = subprocess.run(
        [*ASYNC_RL, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 2
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1
