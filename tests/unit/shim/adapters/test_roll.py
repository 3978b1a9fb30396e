"""ROLL: trackers behind a tag-stripping decorator, timers in the driver, workers in Ray actors."""

from __future__ import annotations

from shapes import Shapes

# call shapes of alibaba/ROLL 8eb27cc
ROLL = Shapes(
    variable="DFX_TEST_ROLL",
    stubs=(
        "vllm", "sglang", "deepspeed", "megatron", "mcore_adapter", "flash_attn", "trackio", "peft",
        "trl", "accelerate", "hydra", "transfer_queue", "opentelemetry", "pybase64",
    ),
    sources={
        "roll/__init__.py": "",
        # roll/utils/tracking.py:40, 57, 66-104, 154
        "roll/utils/tracking.py": """
            from concurrent import futures
            from functools import wraps
            def strip_at_tag_in_log(func):
                @wraps(func)
                def wrapper(self, values: dict, step=None, **kwargs):
                    values = {key.rsplit("@", 1)[0]: value for key, value in values.items()}
                    return func(self, values, step, **kwargs)
                return wrapper
            class BaseTracker:
                def log(self, values, step, **kwargs):
                    pass
                def finish(self):
                    pass
            class TensorBoardTracker(BaseTracker):
                def __init__(self, config, **kwargs):
                    from tensorboardX.writer import SummaryWriter
                    self.writer = SummaryWriter()
                    self.executor = futures.ThreadPoolExecutor(max_workers=1)
                def _write(self, values, step, **kwargs):
                    for k, v in values.items():
                        if isinstance(v, (int, float)):
                            self.writer.add_scalar(k, v, global_step=step, **kwargs)
                @strip_at_tag_in_log
                def log(self, values, step, **kwargs):
                    self.executor.submit(self._write, values, step, **kwargs)
                def finish(self):
                    self.executor.shutdown(wait=True)
            def create_tracker(tracker_name, config, **kwargs):
                return TensorBoardTracker(config, **kwargs)
        """,
        "tensorboardX/__init__.py": "",
        "tensorboardX/writer.py": """
            class SummaryWriter:
                def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
                    pass
        """,
        # codetiming/_timer.py of codetiming 1.4: a dataclass, so not hashable
        "codetiming/__init__.py": """
            from dataclasses import dataclass
            @dataclass
            class Timer:
                name: str = None
                logger: object = print
                last: float = 0.0
                def start(self):
                    pass
                def stop(self):
                    self.last = 1.0
                    return self.last
                def __enter__(self):
                    self.start()
                    return self
                def __exit__(self, *exc_info):
                    self.stop()
        """,
        # roll/distributed/executor/worker.py:45-222
        "roll/distributed/executor/worker.py": """
            import os
            class Worker:
                def __init__(self, worker_config):
                    self.cluster_name = os.environ.get("CLUSTER_NAME", None)
                def load_states(self, *args, **kwargs):
                    pass
                def offload_states(self, *args, **kwargs):
                    pass
                def start_model_update(self, *args, **kwargs):
                    pass
        """,
        # roll/utils/context_managers.py:150-207
        "roll/utils/context_managers.py": """
            from contextlib import contextmanager
            @contextmanager
            def state_offload_manger(strategy, metrics, metric_infix, is_offload_states=True,
                                     load_kwargs={}):
                strategy.load_states(**load_kwargs)
                yield
                if is_offload_states:
                    strategy.offload_states()
        """,
        # roll/pipeline/base_worker.py:32-347, 351-485; decorator.py:24 (the flag)
        "roll/pipeline/base_worker.py": """
            from roll.distributed.executor.worker import Worker
            from roll.utils.context_managers import state_offload_manger
            def register(function):
                function.BIND_WORKER_METHOD_FLAG = {"dispatch_mode": 0}
                return function
            class ActorWorker(Worker):
                strategy = None
                @register
                def train_step(self, data):
                    if self.strategy is not None:
                        with state_offload_manger(self.strategy, {}, "actor_train/train_step"):
                            self.strategy.train_step(data)
                    return data
                @register
                def compute_log_probs(self, data):
                    return data
                @register
                def do_checkpoint(self, global_step, is_last_step=None):
                    pass
            class InferWorker(Worker):
                @register
                async def generate(self, data):
                    return data
        """,
    },
)  # fmt: skip


@ROLL.each_place
def test_reports_are_recorded_once_without_tags(where, tmp_path, dfx_dir):
    job = """
import tempfile
from roll.utils.tracking import create_tracker
tracker = create_tracker("tensorboard", {"a": 1}, log_dir=tempfile.mkdtemp())
tracker.log(values={"actor/pg_loss@sum": 0.5, "critic/score/mean": 1.0, "note": "x"}, step=0)
tracker.log(values={"actor/pg_loss@sum": 0.25}, step=1)
tracker.finish()
"""
    seen = ROLL.run(where, job, tmp_path)
    assert seen.scalars() == {
        ("actor/pg_loss", 0): [0.5],
        ("critic/score/mean", 0): [1.0],
        ("actor/pg_loss", 1): [0.25],
    }
    assert seen.steps() == [1, 2]
    assert seen.identity["framework"] == "roll"
    assert seen.num_errors == 0


@ROLL.each_place
def test_history_replayed_after_a_resume_moves_no_step(where, tmp_path, dfx_dir):
    job = """
from roll.utils.tracking import create_tracker
tracker = create_tracker("tensorboard", {}, log_dir="/tmp")
tracker.log(values={"loss": 2.0, "system/step": 7}, step=7)
tracker.log(values={"loss": 1.0}, step=8)
tracker.log(values={"loss": 3.0, "system/step": 6}, step=6)
tracker.finish()
"""
    seen = ROLL.run(where, job, tmp_path)
    assert seen.steps() == [9]
    losses = {step: v for (name, step), v in seen.scalars().items() if name == "loss"}
    assert losses == {7: [2.0], 8: [1.0], 6: [3.0]}


@ROLL.each_place
def test_the_drivers_timers_are_stages(where, tmp_path, dfx_dir):
    job = """
import roll.utils.tracking
from codetiming import Timer
with Timer(name="step_total", logger=None):
    with Timer(name="cal_old_log_probs_values", logger=None) as timer:
        pass
assert timer.last > 0
with Timer(name="step_generate", logger=None):
    pass
"""
    seen = ROLL.run(where, job, tmp_path)
    assert seen.names("stage") == ["old_logprob", "rollout"]


@ROLL.each_place
def test_workers_stay_what_ray_and_the_cluster_look_for(where, tmp_path, dfx_dir):
    job = """
import inspect
from roll.pipeline.base_worker import ActorWorker, InferWorker
assert ActorWorker.train_step.BIND_WORKER_METHOD_FLAG
assert list(inspect.signature(ActorWorker.train_step).parameters) == ["self", "data"]
assert inspect.iscoroutinefunction(InferWorker.generate)
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
    seen = ROLL.run(where, job, tmp_path)
    parts = seen.parts()
    assert (parts["worker"], parts["models"]) == (1.0, 1.0)


def test_a_worker_has_the_role_of_its_cluster_and_the_step_of_its_batch(tmp_path, dfx_dir):
    job = """
import asyncio, os
from types import SimpleNamespace as NS
from roll.pipeline.base_worker import ActorWorker, InferWorker
os.environ["CLUSTER_NAME"] = "reference"
worker = ActorWorker(None)
batch = NS(meta_info={"global_step": 5})
assert worker.compute_log_probs(batch) is batch
worker.do_checkpoint(global_step=6)
worker.offload_states()
assert asyncio.run(InferWorker(None).generate(batch)) is batch
"""
    seen = ROLL.on_copy(job, tmp_path)
    assert seen.identity["role"] == "ref"
    assert seen.steps() == [5, 6]
    assert seen.names("stage") == ["ref_logprob", "checkpoint", "offload", "rollout"]
    assert seen.num_errors == 0


def test_what_a_worker_is_given_is_in_the_ledger_unless_it_lies_elsewhere(tmp_path, dfx_dir):
    job = """
import torch
from types import SimpleNamespace as NS
from roll.pipeline.base_worker import ActorWorker
class Elsewhere(dict):
    def __missing__(self, name):
        raise SystemExit("it was fetched")
class DataProto:  # roll/distributed/scheduler/protocol.py:165
    def __init__(self, tensors, remote=None):
        self._batch, self._remote_batch = tensors, remote
        self.non_tensor_batch = {"sample_uuid": list("abcd")}
        self.meta_info = {"global_step": 5}
    @property
    def batch(self):
        return Elsewhere()
mask = torch.ones(4, 6)
mask[:, :2] = 0
tensors = {
    "response_mask": mask, "attention_mask": torch.ones(4, 6), "input_ids": torch.ones(4, 6).long(),
    "old_log_probs": torch.zeros(4, 5), "advantages": torch.zeros(4, 5),
    "infer_logprobs": torch.zeros(4, 6), "prompt_id": torch.tensor([0, 0, 1, 1]),
}
worker = ActorWorker(None)
worker.cluster_name = "actor_train"
worker.compute_log_probs(DataProto(tensors))
worker.train_step(DataProto(tensors))
worker.train_step(DataProto(None, remote=Elsewhere()))
"""
    seen = ROLL.on_copy(job, tmp_path)
    assert seen.ledger("old_logprob") == seen.ledger("actor_update")
    fields = seen.ledger("actor_update")
    assert fields["num_rows", ""] == [4.0]
    assert fields["mask_sum", "response_mask"] == [16.0]
    assert fields["num_groups", "prompt_id"] == [2.0]
    assert ("order", "sample_uuid") in fields
    assert fields["num_misaligned", "advantages"] == [0.0]
    assert seen.num_errors == 0


def test_held_memory_is_reported_where_states_are_moved(tmp_path, dfx_dir):
    job = """
from roll.pipeline.base_worker import ActorWorker
class Strategy:
    def load_states(self):
        self.kept = bytearray(b"x" * (64 << 20))
    def train_step(self, data):
        if data == "fails":
            raise ValueError(data)
    def offload_states(self):
        self.kept = None
worker = ActorWorker(None)
worker.strategy = Strategy()
worker.train_step("batch")
worker.load_states()
try:
    worker.strategy.kept = None
    worker.train_step("fails")
except ValueError as error:
    assert error.args == ("fails",)
else:
    raise SystemExit("swallowed")
"""
    seen = ROLL.on_copy(job, tmp_path)
    assert seen.num_errors == 0
    held = {name: value for name, value in seen.gauges().items() if name.endswith("@host")}
    at = "memory/at/{}/resident_bytes/actor_update@host"
    points = "start/offload", "start/onload", "end/onload", "end/offload"
    off, on, still_on, off_again = (held[at.format(point)] for point in points)
    assert min(on, still_on) - max(off, off_again) > 50 << 20
    assert "memory/at/start/onload/resident_bytes/offload@host" in held, "called by itself"
    assert "memory/at/end/offload/resident_bytes/offload@host" not in held
