"""prime-rl: an asynchronous funnel, five reports a step, and a second path on a time axis."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shapes import Shapes, observe

# call shapes of PrimeIntellect-ai/prime-rl 559b447; prime_rl is a namespace package there
PRIME_RL = Shapes(
    variable="DFX_TEST_PRIME_RL",
    folders=("src", "packages/prime-rl-configs/src"),
    stubs=(
        "verifiers", "wandb", "wandb_workspaces", "wandb_gql", "prime_cli", "renderers", "vllm",
        "torchtitan", "dion", "flash_attn", "loguru", "pydantic_config", "msgspec", "zmq", "orjson",
    ),
    sources={
        # src/prime_rl/monitors/__init__.py:42, 101
        "prime_rl/monitors/__init__.py": """
            MONITORS = []
            async def log(data, step, kind="train", subset="effective"):
                for monitor in MONITORS:
                    await monitor.log(data, step=step, kind=kind, subset=subset)
        """,
        # src/prime_rl/utils/monitor/multi.py:28 at v0.8.0
        "prime_rl/utils/monitor/multi.py": """
            class MultiMonitor:
                def log(self, metrics, step):
                    pass
        """,
        # src/prime_rl/orchestrator/periodic_logger.py:17-60
        "prime_rl/orchestrator/periodic_logger.py": """
            class PeriodicLogger:
                def __init__(self, *, name, collect, metric_keys, interval, wandb_enabled):
                    self.collect = collect
                def emit(self) -> None:
                    body, payload = self.collect()
                    payload["_timestamp"] = 1.0
        """,
        # src/prime_rl/orchestrator/inference_metrics.py:263-420
        "prime_rl/orchestrator/inference_metrics.py": """
            import sys
            class InferenceMetricsCollector:
                async def collect_and_log(self):
                    metrics = self.build_metrics([])
                    sys.modules["wandb"].log(metrics)
                def build_metrics(self, samples):
                    return {"inference/agg/num_requests_running/sum": 3.0}
        """,
        # src/prime_rl/trainer/rl/data.py:160-185
        "prime_rl/trainer/rl/data.py": """
            class DataLoader:
                def wait_for_batch(self) -> None:
                    pass
                def get_batch(self):
                    return self.receiver
        """,
        # src/prime_rl/transports/weights/filesystem.py:23
        "prime_rl/transports/weights/filesystem.py": """
            class FileSystemWeightBroadcast:
                def broadcast_weights(self, model, step):
                    return step
        """,
    },
)  # fmt: skip


@PRIME_RL.each_place
def test_one_step_in_several_reports(where, tmp_path, dfx_dir):
    job = """
import asyncio, inspect
from prime_rl import monitors
assert inspect.iscoroutinefunction(monitors.log)
asyncio.run(monitors.log({"perf/mfu": 40.0, "step": 2}, step=2))
asyncio.run(monitors.log({"entropy/all/mean": float("nan"), "step": 2}, step=2))
asyncio.run(monitors.log({"time/step": 3.0, "step": 2}, step=2))
asyncio.run(monitors.log({"system/ckpt_disk_free_ratio": 0.5, "step": 2}, step=2))
asyncio.run(monitors.log([object()], 2, "train", "all"))
"""
    seen = PRIME_RL.run(where, job, tmp_path)
    scalars = seen.scalars()
    assert scalars.pop(("entropy/all/mean", 2)) != [0.0]
    assert scalars == {
        ("perf/mfu", 2): [40.0],
        ("time/step", 2): [3.0],
        ("system/ckpt_disk_free_ratio", 2): [0.5],
        ("step", 2): [2.0] * 4,
    }
    assert seen.steps() == [3]
    assert seen.identity["framework"] == "prime_rl"
    assert seen.num_errors == 0


@PRIME_RL.each_place
def test_counters_that_reading_empties_are_read_once(where, tmp_path, dfx_dir):
    job = """
from prime_rl.orchestrator.periodic_logger import PeriodicLogger
calls = []
def collect():
    calls.append(1)
    return "body", {"event_loop_lag/max": 0.25}
logger = PeriodicLogger(
    name="x", collect=collect, metric_keys=[], interval=1, wandb_enabled=False
)
logger.emit()
assert calls == [1] and logger.collect is collect
"""
    seen = PRIME_RL.run(where, job, tmp_path)
    assert seen.scalars() == {("event_loop_lag/max", -1): [0.25]}
    assert seen.identity["role"] == "orchestrator"


def test_the_share_of_places_that_are_taken(tmp_path, dfx_dir):
    job = """
from prime_rl.orchestrator.periodic_logger import PeriodicLogger
told = {"dispatcher/inflight/train": 6.0, "dispatcher/inflight/eval": 3.0}
def logger(payload):
    return PeriodicLogger(
        name="x", collect=lambda: ("", payload), metric_keys=[], interval=1, wandb_enabled=False
    )
full = {**told, "concurrency/max_inflight": 12.0}
logger(full).emit()
assert len(full) == 4, "what the job gets has its own timestamp, and nothing of ours"
logger({**told, "concurrency/max_inflight": 0.0}).emit()
logger(told).emit()
"""
    seen = PRIME_RL.on_copy(job, tmp_path)
    assert seen.scalars()["pipeline/slot_usage/all", -1] == [0.75]
    assert seen.num_errors == 0


def test_a_periodic_logger_of_another_version_works_as_before(tmp_path, dfx_dir):
    (tmp_path / "prime_rl" / "orchestrator").mkdir(parents=True)
    (tmp_path / "prime_rl" / "orchestrator" / "periodic_logger.py").write_text(
        "class PeriodicLogger:\n"
        "    __slots__ = ('num',)\n"
        "    def gather(self): return 1\n"
        "    def emit(self, force=False): return self.gather(), force\n"
    )
    job = """
from prime_rl.orchestrator.periodic_logger import PeriodicLogger
assert PeriodicLogger().emit(force=True) == (1, True)
class Child(PeriodicLogger):
    def collect(self): return 2
child = Child()
assert child.emit(True) == (1, True) and vars(child) == {}
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
    seen = observe(job, paths=[tmp_path])
    assert seen.parts()["periodic"] == 1.0
    assert seen.num_errors == 0


def test_waits_weights_and_the_older_funnel(tmp_path, dfx_dir):
    job = """
from prime_rl.trainer.rl.data import DataLoader
from prime_rl.transports.weights.filesystem import FileSystemWeightBroadcast
from prime_rl.utils.monitor.multi import MultiMonitor
DataLoader().wait_for_batch()
assert FileSystemWeightBroadcast().broadcast_weights(None, step=4) == 4
MultiMonitor().log({"time/step": 1.0}, step=4)
"""
    seen = PRIME_RL.on_copy(job, tmp_path)
    assert seen.names("wait") == ["queue"]
    assert seen.names("stage") == ["weight_sync"]
    assert seen.scalars() == {("time/step", 4): [1.0]}
    assert seen.steps() == [5]


@pytest.mark.parametrize("part", ["prime_rl.monitors", "all"])
def test_a_part_can_be_left_out(part, tmp_path, dfx_dir, monkeypatch):
    job = """
import asyncio
from prime_rl import monitors
asyncio.run(monitors.log({"time/step": 3.0}, step=2))
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
    job = f"import os\nos.environ['DFX_DISABLE_HOOKS'] = {part!r}\n{job}"
    seen = PRIME_RL.on_copy(job, tmp_path)
    assert seen.scalars() == {("there", -1): [1.0]}
    assert seen.parts()["monitors"] == 0.0


# src/prime_rl/orchestrator/inference_metrics.py:388-460 at v0.6.0, the same at v0.7.0 and v0.8.0
OLDER_INFERENCE = """
import wandb
class InferenceMetricsCollector:
    async def collect_and_log(self):
        metrics = {"inference/agg/running_requests": 3.0}
        smoothed = self.smooth_metrics(metrics)
        wandb.log(smoothed)
    def smooth_metrics(self, metrics):
        return dict(metrics)
"""
NEITHER = """
import wandb
class InferenceMetricsCollector:
    async def collect_and_log(self):
        wandb.log({"inference/agg/running_requests": 3.0})
"""
COLLECT = """
import asyncio
from prime_rl.orchestrator.inference_metrics import InferenceMetricsCollector
asyncio.run(InferenceMetricsCollector().collect_and_log())
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
WANDB = "from wandb.sdk.wandb_run import Run\nlog = Run().log\n"
WANDB_RUN = """
class Run:
    def log(self, data, step=None):
        self._log(data, step)
    def _log(self, data, step=None):
        pass
"""


@pytest.mark.parametrize(
    ("source", "key"),
    [
        (None, "inference/agg/num_requests_running/sum"),
        (OLDER_INFERENCE, "inference/agg/running_requests"),
        (NEITHER, "inference/agg/running_requests"),  # by the tracker, which is then not muted
    ],
    ids=["main", "v0.6 to v0.8", "neither"],
)
def test_inference_metrics_come_once_in_every_version(source, key, tmp_path, dfx_dir):
    (tmp_path / "wandb" / "sdk").mkdir(parents=True)
    (tmp_path / "wandb" / "__init__.py").write_text(WANDB)
    (tmp_path / "wandb" / "sdk" / "__init__.py").write_text("")
    (tmp_path / "wandb" / "sdk" / "wandb_run.py").write_text(WANDB_RUN)
    shapes = PRIME_RL
    if source is not None:
        name = "prime_rl/orchestrator/inference_metrics.py"
        shapes = replace(PRIME_RL, sources={**PRIME_RL.sources, name: source})
    seen = shapes.on_copy("import wandb\n" + COLLECT, tmp_path)
    assert seen.scalars() == {(key, -1): [3.0], ("there", -1): [1.0]}
    assert seen.num_errors == 0


def test_packed_batches_are_in_the_ledger(tmp_path, dfx_dir):
    job = """
import torch
from prime_rl.trainer.rl.data import DataLoader
import dfx_agent.shim as dfx
dfx.set_step(2)
def packed(width):  # trainer/rl/data.py:19
    row = torch.zeros(1, width)
    return dict(input_ids=row.long(), position_ids=row.long(), loss_mask=row == 0, advantages=row,
                inference_logprobs=row.clone(), ref_logprobs=None, env_names=["env"] * width,
                sequence_lengths=[width], seq_lens=torch.tensor([width]))
loader = DataLoader()
loader.receiver = [packed(8), packed(6)]
assert loader.get_batch() is loader.receiver
loader.receiver[1]["inference_logprobs"] = torch.full((1, 5), float("nan"))
loader.get_batch()
"""
    seen = PRIME_RL.on_copy(job, tmp_path)
    given = seen.ledger("actor_update")
    assert given["num_rows", ""] == [2.0, 2.0]
    assert given["mask_sum", "loss_mask"] == [14.0, 14.0]
    assert given["num_misaligned", "inference_logprobs"] == [0.0, 1.0]
    assert given["num_nonfinite", "inference_logprobs"] == [0.0, 1.0]
    assert not {"env_names", "ref_logprobs"} & {column for _, column in given}
    assert seen.num_errors == 0
