"""A job of short steps with the default budget: what is reduced, shown, and what stays."""

import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import job_environment, serving, started, until

JOB = """
import time
import torch
import dfx_agent.shim as dfx

torch.set_num_threads(1)
dfx.init(run="short", role="trainer", rank=0, world_size=1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(1_000_000):
    dfx.set_step(step)
    for stage in ("rollout", "reward", "old_logprob", "ref_logprob"):
        with dfx.stage(stage):
            time.sleep(0.001)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FLOPS_OF_A_STEP = 2 * 4 * 8 * 8  # of the weights' gradients: inputs need none
AS_BY_DEFAULT = {"DFX_MAX_OVERHEAD": "", "DFX_LEDGER_EVERY_STEP": ""}


def values(agent, name):
    families = text_string_to_metric_families(agent.get("/metrics"))
    return [s.value for f in families for s in f.samples if s.name == name]


def newest_step(agent):
    (run,) = agent.snapshot()["runs"]
    return run["ranks"][0]["step"]


def test_at_steps_of_5_ms_most_flops_and_values_go_and_stages_stay(tmp_path, dfx_dir, free_port):
    command = [sys.executable, "-c", JOB]
    with (
        serving(tmp_path, free_port()) as agent,
        started(command, tmp_path, job_environment(**AS_BY_DEFAULT)) as job,
    ):
        until(lambda: values(agent, "dfx_guest_given_up") == [2], "two levels are reduced", 120)
        assert values(agent, "dfx_guest_overhead_ratio")[0] > 0.005
        step = newest_step(agent)
        until(lambda: newest_step(agent) > step + 100, "the job continues", 60)
        assert values(agent, "dfx_guest_given_up") == [2], "stages and collectives stay"
        active = {
            sample.labels["name"]
            for family in text_string_to_metric_families(agent.get("/metrics"))
            for sample in family.samples
            if sample.name == "dfx_patch_active" and sample.value
        }
        assert {"backward", "optimizer", "grad_norm", "flops"} <= active
        (run,) = agent.snapshot()["runs"]
        (rank,) = run["ranks"]
        assert rank["work"]["step"] % 16 == 0
        assert sum(s["backward_flops"] for s in rank["work"]["stages"]) == FLOPS_OF_A_STEP
        assert rank["num_guest_drops"] == 0
        assert job.popen.poll() is None
