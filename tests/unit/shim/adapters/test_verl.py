"""What verl's adapter must not leave in a job: batches that live on, errors of abandoned tasks."""

from __future__ import annotations

import math

import pytest
from shapes import Shapes, observe

from dfx_agent.catalogue.native import load

# verl 0.9.1, verl/utils/profiler/performance.py and verl/single_controller/base
TIMER = """
from contextlib import contextmanager
{decorator}
def _timer(name, timing_raw):
    yield name
@contextmanager
def marked_timer(name, timing_raw):
    {delegate}
"""
VERL = Shapes(
    variable="DFX_TEST_VERL",
    sources={
        "verl/__init__.py": "__version__ = '0.9.1'\n",
        "verl/utils/__init__.py": "",
        "verl/utils/profiler/__init__.py": "",
        "verl/utils/profiler/performance.py": TIMER.format(
            decorator="", delegate="yield from _timer(name, timing_raw)"
        ),
        "verl/utils/debug/__init__.py": "",
        # verl/utils/debug/metrics.py:63
        "verl/utils/debug/metrics.py": """
            def calculate_debug_metrics(data):
                return {"training/rollout_probs_diff_valid": 1}
        """,
        "verl/trainer/ppo/v1/__init__.py": "",
        # verl/trainer/ppo/v1/trainer_base.py:1868
        "verl/trainer/ppo/v1/trainer_base.py": """
            class PPOTrainer:
                def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
                    metrics["done"] = epoch
        """,
    },
)


def test_the_first_batch_does_not_outlive_its_last_use(tmp_path, dfx_dir):
    job = """
import weakref
from verl.utils.profiler.performance import marked_timer
class Batch: pass
class Trainer:
    global_steps = 7
    def fit(self):
        batch = Batch()
        seen = weakref.ref(batch)
        with marked_timer("step", {}):
            with marked_timer("gen", {}):
                assert self.global_steps == 7 and seen() is batch
            del batch
            assert seen() is None
Trainer().fit()
"""
    seen = VERL.on_copy(job, tmp_path)
    assert seen.steps() == [7]
    assert seen.names("stage") == ["rollout"]


@pytest.mark.parametrize(("decorator", "state"), [("", 1.0), ("@contextmanager", 0.0)])
def test_a_timer_that_is_no_generator_is_left_alone(decorator, state, tmp_path, dfx_dir):
    delegate = "yield from _timer(name, timing_raw)"
    if decorator:
        delegate = "\n    with _timer(name, timing_raw) as it: yield it"
    source = TIMER.format(decorator=decorator, delegate=delegate)
    path = "verl/utils/profiler/performance.py"
    shapes = Shapes(VERL.variable, {**VERL.sources, path: source})
    job = """
from verl.utils.profiler.performance import marked_timer
with marked_timer("gen", {}) as it:
    assert it == "gen" or it is None
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
    assert shapes.on_copy(job, tmp_path).parts()["timers"] == state


def test_a_method_that_its_event_loop_left_open_is_closed_anywhere(tmp_path, dfx_dir):
    job = """
import asyncio, contextvars
import dfx_agent.shim as dfx
from dfx_agent.shim.adapters._verl_workers import _MethodSpan
async def method():
    with _MethodSpan(dfx.stage("rollout")):
        await asyncio.sleep(0)
left = method()
contextvars.copy_context().run(left.send, None)
left.close()
"""
    assert VERL.on_copy(job, tmp_path).names("stage") == ["rollout"]


def test_the_mismatch_by_place_in_the_response(tmp_path, dfx_dir):
    """Responses of 600 and 3 tokens; the policies differ by 1 nat in the last of the first."""
    job = """
import math, torch
from types import SimpleNamespace as NS
from verl.utils.debug.metrics import calculate_debug_metrics
import dfx_agent.shim as dfx
dfx.set_step(3)
mask = torch.zeros(2, 700, dtype=torch.long)
mask[0, :600], mask[1, :3] = 1, 1
rollout = torch.full((2, 700), -2.0)
trained = rollout.clone()
trained[0, 599] += 1.0
trained[:, 650:] = math.nan  # padding
data = NS(batch={"rollout_log_probs": rollout, "old_log_probs": trained, "response_mask": mask})
state = torch.get_rng_state()
assert calculate_debug_metrics(data) == {"training/rollout_probs_diff_valid": 1}
assert torch.equal(torch.get_rng_state(), state)
data.batch["response_mask"] = mask * 0
calculate_debug_metrics(data=data)
for name in data.batch:
    data.batch[name] = data.batch[name].to("meta")
calculate_debug_metrics(data)
"""
    seen = VERL.on_copy(job, tmp_path)
    reported = {name.rpartition("/")[2]: values for (name, _), values in seen.scalars().items()}
    assert reported == {
        "first": [0.0], "middle": [0.0], "last": [pytest.approx((math.e - 2) / 256, rel=1e-5)],
    }  # fmt: skip
    assert {step for _, step in seen.scalars()} == {3}
    assert all(load("verl").find(name) for name, _ in seen.scalars())
    assert seen.num_errors == 0


def test_of_a_large_batch_evenly_spaced_rows_are_compared(tmp_path, dfx_dir):
    job = """
import torch
from types import SimpleNamespace as NS
from verl.utils.debug.metrics import calculate_debug_metrics
rollout = torch.zeros(4096, 128)
trained = torch.zeros(4096, 128)
trained[1::2] = 1.0
data = NS(batch={"rollout_log_probs": rollout, "old_log_probs": trained,
                 "response_mask": torch.ones(4096, 128)})
calculate_debug_metrics(data)
"""
    seen = VERL.on_copy(job, tmp_path)
    assert seen.scalars() == {("pipeline/mismatch_kl/position/first", -1): [0.0]}


def test_lags_of_v1_s_trajectories(tmp_path, dfx_dir):
    job = """
from types import SimpleNamespace as NS
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
pairs = [(9, 9), (9, 9), (4, 8), (0, 9)]
tags = [{"min_global_steps": low, "max_global_steps": high} for low, high in pairs]
tags.append({"is_padding": True})
metrics = {}
PPOTrainer()._compute_metrics(NS(tags=tags), metrics, {}, global_steps=10, epoch=1)
PPOTrainer()._compute_metrics(NS(tags=tags[-1:]), metrics, timing_raw={}, global_steps=11, epoch=1)
assert metrics == {"done": 1}
"""
    seen = VERL.on_copy(job, tmp_path)
    scalars = seen.scalars()
    reported = {
        name.removeprefix("pipeline/lag/"): value for (name, _), (value,) in scalars.items()
    }
    assert {name: share for name, share in reported.items() if share} == {
        "oldest/share/0": 0.5, "oldest/share/4-7": 0.25, "oldest/share/8+": 0.25,
        "newest/share/0": 0.75, "newest/share/1": 0.25,
    }  # fmt: skip
    assert len(reported) == 12
    assert {step for _, step in scalars} == {10}
    assert all(load("verl").find(name) for name, _ in scalars)
    assert seen.num_errors == 0


def test_what_the_passes_of_a_worker_took_in(dfx_dir):
    """Samples of 3 and 5 tokens over all of 4 ranks; the update goes through them twice."""
    job = """
from types import SimpleNamespace as NS
from dfx_agent.shim.adapters import _verl_workers
from dfx_agent.shim import recorder
class TensorDict:
    batch_size, told = 2, {"global_token_num": NS(data=[3, 5]), "epochs": NS(data=2)}
    def get(self, name, default=None):
        return self.told.get(name, default)
class Strange:
    batch_size = 2
writer = recorder.active()
worker = NS(role="actor", config=NS(actor=NS(ppo_epochs=2)))
tell = _verl_workers._count_passes
proto = NS(non_tensor_batch={}, meta_info={"global_token_num": [3, 5]})
tell(writer, "actor_update", worker, proto)
tell(writer, "old_logprob", worker, proto)
tell(writer, "ref_logprob", NS(), TensorDict())
tell(writer, "actor_update", NS(), TensorDict())
tell(writer, "actor_update", worker, NS(meta_info={}))
tell(writer, "actor_update", worker, Strange())
"""
    seen = observe(job, env={"WORLD_SIZE": "4", "RANK": "0"})
    reported = [(r.name, r.value) for r in seen.records if r.kind == "count"]
    assert reported == [
        ("passes/tokens/actor_update", 4.0), ("passes/pairs/actor_update", 17.0),
        ("passes/tokens/old_logprob", 2.0), ("passes/pairs/old_logprob", 8.5),
        ("passes/tokens/ref_logprob", 2.0), ("passes/pairs/ref_logprob", 8.5),
        ("passes/tokens/actor_update", 4.0), ("passes/pairs/actor_update", 17.0),
    ]  # fmt: skip
    assert seen.num_errors == 0
