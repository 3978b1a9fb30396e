"""A torchrun job without adapter and without a changed line: what /metrics tells about it."""

import signal
import urllib.request
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as plain_text

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import TORCHRUN, job_environment, running, until, unused_port

pytestmark = pytest.mark.smoke
JOB = str(Path(__file__).parent / "jobs" / "plain_ddp.py")
RANKS = ["0", "1"]


def scrape(port):
    """sample name -> [(labels, value)]"""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    samples = defaultdict(list)
    for family in plain_text(text):
        for sample in family.samples:
            samples[sample.name].append((sample.labels, sample.value))
    return samples


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """Of a job that has taken 100 steps and goes on."""
    folder, port = tmp_path_factory.mktemp("plain"), unused_port()
    environment = job_environment(DFX_DIR=str(folder / "segments"))
    command = [*TORCHRUN, "2", JOB, "100000"]
    with running(folder, port, command, environment) as agent:

        def has_steps():
            assert agent.process.popen.poll() is None, agent.process.errors
            steps = [value for _, value in scrape(port)["dfx_step"]]
            return len(steps) == len(RANKS) and min(steps) >= 100

        until(has_steps, "100 steps of 2 ranks", 90)
        yield scrape(port)
        agent.process.send(signal.SIGTERM)
        agent.process.wait(30)


def by_rank(samples, **wanted):
    return {
        labels["rank"]: value
        for labels, value in samples
        if all(labels[key] == word for key, word in wanted.items())
    }


def test_steps_are_the_optimizers_steps(metrics):
    steps = by_rank(metrics["dfx_step"])
    taken = by_rank(metrics["dfx_optimizer_steps_total"])
    assert sorted(steps) == RANKS
    for rank in RANKS:
        assert abs(steps[rank] - taken[rank]) <= 0.2 * taken[rank], "time is one reading behind"
        assert by_rank(metrics["dfx_rank_step_seconds"])[rank] > 0.02


def test_forward_backward_and_optimizer_have_their_time(metrics):
    for stage in ("forward", "backward", "optimizer"):
        seconds = by_rank(metrics["dfx_rank_stage_active_seconds_total"], stage=stage)
        assert sorted(seconds) == RANKS
        assert min(seconds.values()) > 0.01


def test_micro_batches_are_backward_passes(metrics):
    for rank in RANKS:
        micro_batches = by_rank(metrics["dfx_micro_batches_total"])[rank]
        assert micro_batches / by_rank(metrics["dfx_optimizer_steps_total"])[rank] == pytest.approx(
            2, abs=0.1
        )


def test_gradient_norm_learning_rate_and_loss(metrics):
    norms = by_rank(metrics["dfx_grad_norm"])
    assert norms["0"] == pytest.approx(norms["1"], rel=0.5), "gradients are averaged"
    assert by_rank(metrics["dfx_learning_rate"]) == {"0": 1e-3, "1": 1e-3}
    assert sorted(by_rank(metrics["dfx_loss"])) == RANKS


def test_the_late_rank_makes_the_other_one_wait(metrics):
    """By 20 ms in each step; what a loaded machine adds falls on both."""
    steps = by_rank(metrics["dfx_step"])
    peers = dict.fromkeys(RANKS, 0.0)
    for labels, value in metrics["dfx_rank_collective_seconds_total"]:
        if labels["part"] == "peers":
            peers[labels["rank"]] += value
    assert peers["0"] - peers["1"] > 0.02 / 2 * min(steps.values())


def test_all_collectives_are_seen(metrics):
    ratios = by_rank(metrics["dfx_collective_coverage_ratio"])
    assert sorted(ratios) == RANKS
    assert min(ratios.values()) > 0.95
    assert max(ratios.values()) <= 1.05


def test_time_adds_up_to_the_wall(metrics):
    for rank in RANKS:
        wall = by_rank(metrics["dfx_rank_wall_seconds_total"])[rank]
        parts = by_rank(metrics["dfx_rank_active_seconds_total"])[rank]
        parts += by_rank(metrics["dfx_rank_idle_seconds_total"])[rank]
        waits = [v for ls, v in metrics["dfx_rank_wait_seconds_total"] if ls["rank"] == rank]
        assert parts + sum(waits) == pytest.approx(wall, rel=0.01)


def test_blocked_time_is_what_was_waited_for_collectives(metrics):
    for rank in RANKS:
        waits = metrics["dfx_rank_wait_seconds_total"]
        waited = sum(v for ls, v in waits if ls["rank"] == rank and ls["kind"] == "collective")
        collectives = metrics["dfx_rank_collective_seconds_total"]
        blocked = sum(v for ls, v in collectives if ls["rank"] == rank)
        assert blocked == pytest.approx(waited, rel=0.2), "time is one reading behind"


def test_host_memory_and_hooks_are_reported(metrics):
    assert min(by_rank(metrics["dfx_host_memory_anonymous_bytes"]).values()) > 50e6
    for hook in ("collectives", "ddp", "forward", "backward", "optimizer", "grad_norm"):
        assert by_rank(metrics["dfx_patch_active"], name=hook) == {"0": 1, "1": 1}


def test_nothing_was_lost_or_went_wrong_in_the_guest(metrics):
    for name in ("dfx_guest_lost_records_total", "dfx_guest_dropped_total"):
        assert set(by_rank(metrics[name]).values()) == {0.0}
