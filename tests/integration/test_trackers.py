"""A job under ``dfx-agent run``: its steps stand in the trackers that dfx.yaml names."""

import re
import sys

import pytest

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.node.logs.reader import open_logs

NUM_STEPS = 6
JOB = f"""
import time
import dfx_agent.shim as dfx
dfx.init(role="trainer", framework="trl")
for step in range(1, {NUM_STEPS} + 1):
    dfx.set_step(step)
    with dfx.stage("rollout"):
        time.sleep(0.02)
        with dfx.wait("queue"):
            time.sleep(0.01)
    dfx.tokens("response", 100)
    dfx.scalars({{"reward": step / 10, "my/own": step}}, step=step)
"""


@pytest.fixture
def observe(tmp_path, dfx_dir, free_port, run_cli):
    """Write dfx.yaml, run the job under it from ``tmp_path``."""
    (tmp_path / "job.py").write_text(JOB)

    def run(settings):
        (tmp_path / "dfx.yaml").write_text(settings)
        listen = f"127.0.0.1:{free_port()}"
        command = ("run", "--run", "a/b", "--listen", listen, "--", sys.executable, "job.py")
        return run_cli(*command, cwd=tmp_path)

    return run


def test_each_step_of_the_job_stands_once_in_each_tracker(observe, tmp_path):
    done = observe("track_with: [jsonl, stdout]\ntracker_kwargs: {jsonl: {log_dir: steps}}\n")
    assert done.returncode == 0, done.stderr
    (log,) = open_logs(tmp_path / "steps" / "a%2Fb.jsonl")
    rows = list(log.rows())
    assert [step for step, _ in rows] == list(range(1, NUM_STEPS + 1))
    for step, spelled in rows:
        values = {log.written(key): value for key, value in spelled.items()}
        assert (values["reward"], values["critic/rewards/mean"]) == (step / 10, step / 10)
        assert (values["my/own"], values["tokens/response"]) == (step, 100)
        assert values["time/rollout/total"] > values["time/rollout/execute"] > 0
        assert values["time/step_total"] * values["system/tps"] == pytest.approx(100)
    steps = re.findall(r"^run a/b step:(\d+) - reward:", done.stdout, re.MULTILINE)
    assert steps == [str(step) for step in range(1, NUM_STEPS + 1)]


def test_an_unwritable_history_is_reported_and_the_job_continues(observe, tmp_path):
    (tmp_path / "steps" / "a%2Fb.jsonl").mkdir(parents=True)
    done = observe("track_with: jsonl\ntracker_kwargs: {jsonl: {log_dir: steps}}\n")
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "tracker" in line]
    assert len(lines) == 1
    result = (
        "dfx-agent: tracker jsonl, run a/b: step 1 and later are not written (IsADirectoryError"
    )
    assert lines[0].startswith(result)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("track_with: jsnl", "no tracker 'jsnl'"),
        ("track_with: jsonl\ntracker_kwargs: {jsonl: {log_dir: job.py}}",
         "cannot open tracker jsonl: "),
    ],
)  # fmt: skip
def test_a_tracker_that_cannot_open_is_said_and_the_job_runs(observe, settings, says):
    done = observe(settings)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert says in line
    assert line.endswith("; CMD runs unobserved")


def test_what_failed_is_in_the_snapshot_and_in_the_metrics(dfx_dir):
    agent = Agent(Config(str(dfx_dir)))
    try:
        for _ in range(2):
            agent.report("r", "wandb", "tracker wandb, run r: step 3 and later are not written")
        (problem,) = agent.snapshot().agent.problems
        assert (problem.path, problem.kind) == ("wandb", "exporter")
        text = PrometheusExporter(agent).render(None)[0].decode()
        assert "dfx_agent_exporter_errors_total 2.0" in text
    finally:
        agent.stop()
