"""verl as it is on PyPI, on a real Ray: a driver and two workers, on CPU."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_processes import (
    DFX_AGENT,
    LiveAgent,
    Started,
    job_environment,
    serving,
    started,
    until,
)
from observed_job import observe
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

pytest.importorskip("verl", reason="no verl; `make test-frameworks` installs it")
pytest.importorskip("ray", reason="no ray; `make test-frameworks` installs it")

JOB = Path(__file__).resolve().parent / "jobs" / "verl_grpo.py"
MANY = "1000000"
pytestmark = pytest.mark.timeout(1200)
START_SECONDS = 600.0  # against a job that never comes up; says nothing about speed
RANKS = {"0", "1"}
DRIVER_STAGES = {"rollout", "old_logprob", "advantage", "actor_update", "weight_sync"}
WORKER_STAGES = {"old_logprob", "actor_update", "weight_sync", "forward", "backward"}
# prompts of 4 tokens, 8 samples a step on two ranks
PROMPT_TOKENS_PER_STEP = 16


def command(kind: str, num_steps: str = MANY) -> list[str]:
    return [sys.executable, str(JOB), num_steps, kind]


def environment(**changes: str) -> dict[str, str]:
    return job_environment(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", **changes)


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    def of(self, name: str, **fixed: str) -> list[Sample]:
        return [
            sample
            for sample in self.samples
            if sample.name == name and fixed.items() <= sample.labels.items()
        ]

    def labels(self, label: str, name: str, **fixed: str) -> set[str]:
        return {sample.labels[label] for sample in self.of(name, **fixed)}

    def value(self, name: str, **fixed: str) -> float:
        (sample,) = self.of(name, **fixed)
        return float(sample.value)


def is_complete(metrics: Metrics) -> bool:
    """The driver has passed a step, and so has every worker, filed as what it is."""
    step = "dfx_rank_step_seconds"
    active = "dfx_rank_stage_active_seconds_total"
    return (
        metrics.labels("rank", step, role="actor") == RANKS
        and all(metrics.labels("stage", active, rank=rank) >= WORKER_STAGES for rank in RANKS)
        and bool(metrics.of(step, role="driver"))
        and bool(metrics.of("dfx_actor_entropy_nats", role="driver"))
        and metrics.labels("rank", "dfx_policy_version", role="actor") == RANKS
    )


def scrape_when_complete(agent: LiveAgent, job: Started) -> Metrics:
    def look() -> Metrics | None:
        assert job.popen.poll() is None, job.output[-2000:] + job.errors[-4000:]
        metrics = Metrics(agent.get("/metrics"))
        return metrics if is_complete(metrics) else None

    return until(look, "a step of the driver and of both workers", START_SECONDS)


def check(metrics: Metrics) -> None:
    """What must be there, however the guest came in."""
    (run,) = metrics.labels("run", "dfx_rank_info")
    assert metrics.labels("framework", "dfx_run_info", run=run) == {"verl"}
    assert metrics.labels("world_size", "dfx_rank_info", role="actor") == {"2"}
    active = "dfx_rank_stage_active_seconds_total"
    assert metrics.labels("stage", active, role="driver") >= DRIVER_STAGES
    assert "step" not in metrics.labels("stage", active)
    for name in ("dfx_reward", "dfx_step_tokens", "dfx_actor_loss"):
        assert metrics.labels("role", name) == {"driver"}
    # percentiles are those of the samples of each worker
    lengths = "dfx_response_length_tokens"
    assert metrics.labels("role", lengths, stat="mean") == {"driver"}
    for part in ("tracking", "timers"):
        assert metrics.value("dfx_adapter_active", role="driver", part=part) == 1
    # its workers' methods run in them: nothing comes through here, and that is no silence
    assert metrics.value("dfx_adapter_active", role="driver", part="methods") == 0
    assert metrics.of("dfx_adapter_silent", role="driver", part="methods") == []
    for rank in RANKS:
        assert metrics.value("dfx_adapter_active", role="actor", rank=rank, part="methods") == 1
        tokens = {"role": "actor", "rank": rank}
        assert metrics.value("dfx_rank_tokens_total", kind="response", **tokens) > 0
        prompt = metrics.value("dfx_rank_tokens_total", kind="prompt", **tokens)
        assert prompt % PROMPT_TOKENS_PER_STEP == 0
        assert metrics.value("dfx_guest_dropped_total", **tokens) == 0
        batches = metrics.value("dfx_ledger_crossings_total", boundary="actor_update", **tokens)
        assert batches > 0


@contextmanager
def agent_beside(folder: Path, words: list[str], port: int) -> Iterator[LiveAgent]:
    words = [*DFX_AGENT, words[0], "--listen", f"127.0.0.1:{port}", *words[1:]]
    with started(words, folder, environment()) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        yield agent


@pytest.mark.parametrize("kind", ["plain", "colocated"])
def test_under_run_driver_and_workers_are_seen(
    kind: str, tmp_path: Path, dfx_dir: Path, free_port: Callable[[], int]
) -> None:
    with agent_beside(tmp_path, ["run", "--run", "it", "--", *command(kind)], free_port()) as agent:
        metrics = scrape_when_complete(agent, agent.process)
        check(metrics)
        assert metrics.labels("run", "dfx_rank_info") == {"it"}
        assert metrics.labels("local_rank", "dfx_rank_info", role="actor") == RANKS
        steps = [sample.value for sample in metrics.of("dfx_step", role="actor")]
        (step,) = (sample.value for sample in metrics.of("dfx_step", role="driver"))
        assert all(abs(step - other) <= 1 for other in steps)  # told, not counted


def test_installed_beside_verl_it_needs_no_launcher(
    tmp_path: Path, dfx_dir: Path, free_port: Callable[[], int]
) -> None:
    """Armed by verl's own plugins, in the driver and in each worker: one run by name."""
    with (
        serving(tmp_path, free_port()) as agent,
        started(command("colocated"), tmp_path, environment()) as job,
    ):
        metrics = scrape_when_complete(agent, job)
        check(metrics)
        (run,) = metrics.labels("run", "dfx_rank_info")
        assert run == f"ray-{job.pid}-01000000"


def test_attach_finds_the_workers_and_leaves_the_job_as_it_was(
    tmp_path: Path, dfx_dir: Path, free_port: Callable[[], int]
) -> None:
    env = environment(VERL_USE_EXTERNAL_PLUGINS="none")
    with started(command("plain"), tmp_path, env) as job:
        until(lambda: "step:2 " in job.output, "two steps", START_SECONDS)
        job.descendants()
        with agent_beside(tmp_path, ["attach", "--pid", str(job.pid)], free_port()) as agent:
            metrics = scrape_when_complete(agent, job)
            check(metrics)
            assert metrics.labels("run", "dfx_rank_info") == {f"ray-{job.pid}-01000000"}
            agent.process.send(signal.SIGINT)
            assert agent.process.wait() == 0, agent.process.errors
        last = job.output.count("step:")
        until(lambda: job.output.count("step:") > last + 2, "the job goes on")
        assert job.popen.poll() is None


def test_attach_finds_the_driver_of_a_cluster_that_was_there_before(
    tmp_path: Path, dfx_dir: Path, free_port: Callable[[], int]
) -> None:
    """Nothing descends from the driver then; from one worker to all others and to the driver."""
    ray_command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
    port = free_port()
    env = environment(VERL_USE_EXTERNAL_PLUGINS="none", RAY_ADDRESS=f"127.0.0.1:{port}")
    with (
        # of its own, with a short name (sockets): else every later ray.init() would join it
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own,
        started(
            [*ray_command, f"--port={port}", "--num-cpus=2", f"--temp-dir={own}"],
            tmp_path,
            environment(),
        ) as cluster,
    ):
        until(lambda: "Ray runtime started" in cluster.output, "a cluster", START_SECONDS)
        cluster.descendants()
        with started(command("plain"), tmp_path, env) as job:
            until(lambda: "step:2 " in job.output, "two steps", START_SECONDS)
            workers = [p for p in cluster.descendants() if p.name().startswith("ray::ActorW")]
            assert len(workers) == 2
            for pid in (job.pid, workers[0].pid):
                assert attachable(pid, tmp_path) == {job.pid, *(w.pid for w in workers)}


def attachable(pid: int, folder: Path) -> set[int]:
    """Pids that ``attach --check`` names."""
    words = [*DFX_AGENT, "attach", "--check", "--pid", str(pid)]
    with started(words, folder, environment()) as process:
        assert process.wait() == 0, process.errors
        rows = [line.split() for line in process.output.splitlines() if " pid " in line]
    return {int(row[row.index("pid") + 1]) for row in rows}


def test_a_worker_class_travels_without_the_guest(tmp_path: Path, dfx_dir: Path) -> None:
    """Pickled by value, and called where there is no dfx_agent."""
    pickled = tmp_path / "class.pickle"
    observe(
        f"""
from ray import cloudpickle
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
class Actor(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update_actor(self, value):
        return value + 1
assert Actor.update_actor.dfx_observed
open({str(pickled)!r}, "wb").write(cloudpickle.dumps(Actor))
import dfx_agent.shim as dfx
dfx.init()
"""
    )
    there = f"""
import sys
sys.modules["dfx_agent"] = None
import pickle
actor = pickle.load(open({str(pickled)!r}, "rb"))
print(actor.update_actor(None, 1))
"""
    env = environment(VERL_USE_EXTERNAL_PLUGINS="none", DFX_AGENT="0")
    done = subprocess.run(
        [sys.executable, "-c", there], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["2"], done.stderr[-3000:]


def test_reports_and_timers_of_a_trainer(dfx_dir: Path) -> None:
    seen = observe(
        """
import math
from verl.utils.profiler import marked_timer, simple_timer
from verl.utils.tracking import Tracking
class Trainer:
    def fit(self):
        self.global_steps = 41  # resumed
        tracking = Tracking("p", "e", ["console"], {"trainer": {}})
        timing = {}
        with marked_timer("step", timing):
            with marked_timer("gen", timing, color="red"):
                with simple_timer("tool_calls", timing):
                    pass
            with marked_timer("wait_prev_gen", timing):
                pass
            try:
                with marked_timer("update_actor", timing):
                    raise KeyError("job")
            except KeyError:
                pass
        assert "update_actor" not in timing  # as verl does it, with and without us
        values = {"actor/ppo_kl": 0.5, "actor/grad_norm": math.nan, "note": "text"}
        tracking.log(data=values, step=self.global_steps)
        tracking.log({"val-core/gsm8k/acc/mean@1": 1}, 41)
Trainer().fit()
"""
    )
    assert seen.steps() == [41, 42]
    assert seen.names("stage") == ["tool_calls", "rollout", "actor_update"]
    assert seen.names("wait") == ["queue"]
    scalars = seen.scalars()
    assert scalars["actor/ppo_kl", 41] == [0.5]
    assert len(scalars["actor/grad_norm", 41]) == 1
    assert scalars["val-core/gsm8k/acc/mean@1", 41] == [1.0]
    assert ("note", 41) not in scalars
    assert seen.identity["framework"] == "verl"
    assert seen.identity["role"] == "driver"
    assert seen.num_errors == 0


def test_the_mismatch_of_a_batch_by_place_in_the_response(dfx_dir: Path) -> None:
    seen = observe(
        """
import torch
from verl import DataProto
from verl.utils.debug.metrics import calculate_debug_metrics
import dfx_agent.shim as dfx
dfx.set_step(3)
shape = (4, 300)
tensors = {
    "responses": torch.zeros(shape, dtype=torch.long),
    "response_mask": torch.ones(shape, dtype=torch.long),
    "rollout_log_probs": torch.full(shape, -1.0),
    "old_log_probs": torch.full(shape, -1.5) + torch.rand(shape) / 8,
}
assert calculate_debug_metrics(DataProto.from_dict(tensors=tensors))
"""
    )
    scalars = seen.scalars()
    places = {name.rpartition("/")[2] for name, step in scalars if step == 3}
    assert places == {"first", "last"}
    # log ratios of -0.5 to -0.375
    assert all(0.06 < value < 0.11 for (value,) in scalars.values())
    assert seen.num_errors == 0


def test_steps_tokens_and_roles_of_a_worker(dfx_dir: Path) -> None:
    """Without a number, a stage that was passed already begins the next step."""
    seen = observe(
        """
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.single_controller.base.decorator import Dispatch, register
class Reference:
    role = "ref"
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def compute_ref_log_prob(self, data):
        return data
class Hybrid:
    role = "actor_rollout"
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def generate_sequences(self, data):
        return data
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update_actor(self, data):
        return self.train_mini_batch(data)
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def train_mini_batch(self, data):
        return data
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def update_weights(self, global_steps=None):
        return global_steps
padded = DataProto.from_dict({
    "responses": torch.ones(2, 3, dtype=torch.long),
    "attention_mask": torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
})
rows = [torch.ones(n, dtype=torch.long) for n in (3, 5)]
jagged = TensorDict({
    "prompts": torch.nested.as_nested_tensor([row[:2] for row in rows], layout=torch.jagged),
    "responses": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
}, batch_size=2)
ref, hybrid = Reference(), Hybrid()
ref.compute_ref_log_prob(padded)
ref.compute_ref_log_prob(padded)
for batch in (padded, jagged):
    hybrid.generate_sequences(batch)
    hybrid.update_actor(batch)
import asyncio
assert asyncio.run(hybrid.update_weights(global_steps=9)) == 9
ref.compute_ref_log_prob(padded)
""",
        env={"RANK": "3", "WORLD_SIZE": "4", "RAY_LOCAL_WORLD_SIZE": "2"},
    )
    first, second = ["rollout", "actor_update"], ["rollout", "actor_update", "weight_sync"]
    assert seen.names("stage") == ["ref_logprob", "ref_logprob", *first, *second, "ref_logprob"]
    assert seen.steps() == [1, 2, 3, 4, 10]
    tokens = [(r.name, r.value, r.step) for r in seen.records if r.kind == "tokens"]
    assert tokens == [
        ("response", 5.0, 3), ("prompt", 3.0, 3), ("response", 8.0, 4), ("prompt", 4.0, 4),
    ]  # fmt: skip
    assert (seen.identity["role"], seen.identity["local_rank"]) == ("actor", 1)
    assert seen.num_errors == 0


def test_what_passes_took_in_over_the_ranks_of_a_worker_group(dfx_dir: Path) -> None:
    """The trainer says the lengths of all samples, and they stay whole when the batch is split."""
    seen = observe(
        """
import torch
from verl import DataProto
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.tensordict_utils import chunk_tensordict, get_tensordict
class Hybrid:
    role = "actor_rollout"
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def compute_log_prob(self, data):
        return data
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update_actor(self, data):
        return data
told = {"global_token_num": [3, 5], "epochs": 2}
rows = {"responses": torch.ones(2, 3, dtype=torch.long)}
Hybrid().compute_log_prob(DataProto.from_dict(rows, meta_info=told))
Hybrid().update_actor(chunk_tensordict(get_tensordict(rows, told), 2)[0])
""",
        env={"RANK": "3", "WORLD_SIZE": "4"},
    )
    passes = {r.name: r.value for r in seen.records if r.kind == "count" and "passes" in r.name}
    assert passes == {
        "passes/tokens/old_logprob": 2.0, "passes/pairs/old_logprob": 8.5,
        "passes/tokens/actor_update": 4.0, "passes/pairs/actor_update": 17.0,
    }  # fmt: skip
    assert seen.num_errors == 0
