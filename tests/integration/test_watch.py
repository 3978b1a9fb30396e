"""`dfx-agent watch`: a log that grows is a run on the page, in /metrics and to the detector."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_processes import (
    DFX_AGENT,
    LiveAgent,
    job_environment,
    started,
    until,
    unused_port,
)
from prometheus_client.parser import text_string_to_metric_families


def row(step: int, **changes: float) -> str:
    values = {"actor/ppo_kl": 0.001, "actor/grad_norm": 0.5, "critic/score/mean": 0.1, "my/own": 7}
    return json.dumps({"step": step, "data": values | changes}) + "\n"


@contextmanager
def watching(folder: Path, *files: Path | str) -> Iterator[LiveAgent]:
    port = unused_port()
    listen = f"127.0.0.1:{port}"
    command = [*DFX_AGENT, "watch", *map(str, files), "--listen", listen]
    with started(command, folder, job_environment(TMPDIR=str(folder))) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        yield agent
        process.send(signal.SIGTERM)
        assert process.wait() == 0, process.errors
        assert not list(folder.glob("dfx-watch-*")), "its own folder is gone"


def series(agent: LiveAgent, name: str) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(agent.get("/metrics"))
    samples = (sample for family in families for sample in family.samples)
    return [(sample.labels, sample.value) for sample in samples if sample.name == name]


@pytest.mark.smoke
def test_a_growing_log_is_followed(tmp_path: Path):
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(row(step) for step in range(5)))
    with watching(tmp_path, log) as agent:
        until(lambda: series(agent, "dfx_policy_kl_k1_nats"), "what was there already")
        with log.open("a") as file:
            file.write(row(5, **{"actor/ppo_kl": 0.25}) + "{not json\n" + row(6))
        ((labels, _),) = series(agent, "dfx_policy_kl_k1_nats")
        assert (labels["run"], labels["role"]) == ("metrics", "log")

        def steps() -> list[int]:
            (history,) = agent.json("/api/v1/runs/metrics/scalars?key=actor/ppo_kl")
            return history["steps"]

        until(lambda: steps() == list(range(7)), "all steps, in their order")
        ((labels, value),) = series(agent, "dfx_native_metric")
        assert (labels["key"], labels["framework"], value) == ("my/own", "verl", 7.0)
        until(lambda: series(agent, "dfx_symptom_active"), "the detector")
        assert "line 7 is not a JSON object" in agent.process.errors


def test_in_a_folder_that_was_named_other_verbs_find_it(tmp_path: Path):
    log, folder = tmp_path / "metrics.jsonl", tmp_path / "watched"
    log.write_text("".join(row(step) for step in range(5)))
    with watching(tmp_path, log, "--dir", folder) as agent:
        until(lambda: series(agent, "dfx_policy_kl_k1_nats"), "what was there already")
        listed = [*DFX_AGENT, "ps", "--dir", str(folder), "--json"]
        done = subprocess.run(listed, check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert [run["run"] for run in json.loads(done.stdout)["runs"]] == ["metrics"]


def test_a_log_that_became_shorter_is_a_restarted_job(tmp_path: Path):
    log, other = tmp_path / "run.jsonl", tmp_path / "empty.jsonl"
    log.write_text("".join(row(step) for step in range(4)))
    other.touch()
    with watching(tmp_path, log, other) as agent:
        until(lambda: series(agent, "dfx_actor_grad_norm"), "the first attempt")
        log.write_text(row(0, **{"actor/grad_norm": 3.0}))
        until(lambda: series(agent, "dfx_actor_grad_norm")[0][1] == 3.0, "the second attempt")
        runs = {run["run"]: run for run in agent.snapshot()["runs"]}
        assert runs["run"]["attempt"] == 1
        assert runs["empty"]["standing"]["reason"] == "Nothing has been judged yet."


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path, run_cli):
    result = run_cli("watch", str(tmp_path / "nothing.jsonl"))
    assert result.returncode == 2
    assert "there is no" in result.stderr
    assert result.stderr.count("\n") == 1
