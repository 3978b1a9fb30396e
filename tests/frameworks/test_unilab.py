"""unilab-rl's own loggers, runner methods and weight sync: read, never added to."""

from __future__ import annotations

import pytest
from observed_job import observe

pytest.importorskip("uni_rl", reason="no unilab-rl; `make test-frameworks` installs it")

LOGGER = """
import tempfile
from uni_rl.logging.offpolicy import OffPolicyLogger
logger = OffPolicyLogger(log_dir=tempfile.mkdtemp(), log_backend="tensorboard", log_interval=2)
"""


def test_what_the_backends_get_is_recorded_under_its_iteration(dfx_dir):
    job = f"""{LOGGER}
metrics = {{"Loss/actor": 0.5, "Train/approx_kl": float("nan")}}
logger.log_step(1, metrics, train_time=0.1, iteration_time=0.25)  # no backend is due
logger.log_step(2, metrics, collector_wait_time=0.5, train_time=0.1, iteration_time=0.25)
try:
    logger.log_step(3, {{"dfx/foo": 1.0}})
except ValueError:
    pass
else:
    raise SystemExit("the schema is not closed any more")
"""
    seen = observe(job)
    scalars = seen.scalars()
    assert scalars["Loss/actor", 2] == [0.5]
    assert len(scalars["Train/approx_kl", 2]) == 1  # NaN is counted, not lost
    assert scalars["Perf/learner_collector_wait_ms", 2] == [500.0]
    assert scalars["Perf/iteration_time", 2] == [0.25]
    assert {step for _, step in scalars} == {2}
    assert seen.steps() == [2, 3, 4]
    assert seen.names("wait") == ["logger"] * 3
    assert (seen.identity["framework"], seen.identity["role"]) == ("unilab", "learner")
    assert seen.num_errors == 0


def test_four_waits_of_the_learner_stay_four_kinds(dfx_dir):
    job = """
import torch
from types import SimpleNamespace as NS
from unittest.mock import MagicMock
from uni_rl.ipc.dp_sync import DpParameterSync
from uni_rl.offpolicy.double_buffer_runner import DoubleBufferOffPolicyRunner as Runner
runner = MagicMock()
def call(method, *args, **kwargs):
    try:
        method(*args, **kwargs)
    except Exception:
        pass  # without a simulator they do not get far; that they were entered counts here
call(Runner._wait_for_inference_request, runner, MagicMock(get=lambda timeout: 1), expected_tick=1,
     replay_pipeline=MagicMock(), metrics_queue=None, reward_history=None,
     latest_reward_components=None, logger=None, trace_recorder=None, replay_buffer=None,
     ckpt_path=None, train_start_wall=0.0)
call(Runner._wait_for_replay_batch_ready, runner, MagicMock(), 1, 1, *[None] * 7)
call(Runner._release_inference_tick, runner, None, inference_scheduler=MagicMock(),
     replay_buffer=MagicMock(), trace_recorder=None)
call(DpParameterSync.allreduce_statistics, MagicMock())
"""
    seen = observe(job)
    assert seen.names("wait") == ["collector", "replay_batch", "sync_coordination", "barrier"]


def test_weights_really_sent_are_a_stage(dfx_dir):
    job = """
import torch
from uni_rl.ipc.weight_sync import SharedWeightSync
weights = {"w": torch.ones(2)}
sync = SharedWeightSync.from_state_dict(weights)
sync.write_weights({"w": torch.full((2,), 3.0)})
received = {"w": torch.zeros(2)}
sync.read_weights_into(received)
assert received["w"].tolist() == [3.0, 3.0]
sync.close()
sync.cleanup()
"""
    assert observe(job).names("stage") == ["weight_sync"] * 3  # the first at the start


APPO = """
import torch
import uni_rl.algos.appo.learner as appo
import dfx_agent.shim as dfx

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(5, width)
        self.distribution = type("Scalar", (), {"std_type": "scalar", "std_param": torch.ones(2)})
    def forward(self, inputs, stochastic_output=False):
        self.output_mean = self.layer(inputs["policy"])
        return self.output_mean
    def get_output_log_prob(self, actions):
        return -((actions - self.output_mean) ** 2).sum(-1)

appo.resolve_optimizer = lambda name: torch.optim.Adam
learner = appo.APPOLearner(Model(2), Model(1))
STEPS, ENVS = 6, 3
batch = {name: torch.zeros(STEPS, ENVS) for name in ("actions_log_prob", "rewards", "dones")}
batch |= {"observations": torch.rand(STEPS, ENVS, 5), "actions": torch.rand(STEPS, ENVS, 2),
          "last_obs": torch.rand(ENVS, 5)}
dfx.set_step(3)
learner.process_batch(batch)
try:
    learner.update(batch)
except AttributeError:
    pass  # of rsl_rl's models, which are not here; it was entered
"""


def test_a_batch_of_appo_is_in_the_ledger_before_and_after_advantages(dfx_dir):
    seen = observe(APPO, stubs=("rsl_rl",))
    before, after = seen.ledger("advantage"), seen.ledger("actor_update")
    assert before["num_rows", ""] == after["num_rows", ""] == [6.0]
    added = {column for _, column in after} - {column for _, column in before}
    assert added == {"values", "returns", "advantages", "target_log_probs"}
    assert not any(any(values) for (field, _), values in after.items() if field == "num_misaligned")
    assert seen.num_errors == 0


UNI_RL = """
import uni_rl.logging.onpolicy, uni_rl.offpolicy.worker, uni_rl.offpolicy.double_buffer_runner
import uni_rl.ipc.dp_sync, uni_rl.ipc.weight_sync, uni_rl.ipc.rollout_ring_buffer
import uni_rl.ipc.tensor_rollout_ring_buffer
import uni_rl.algos.sac.learner, uni_rl.algos.flash_sac.learner
import uni_rl.algos.appo.learner, uni_rl.algos.appo.worker, uni_rl.algos.appo.staging
"""
UNILAB = """
import unilab.rl.logging.onpolicy, unilab.rl.runtime.offpolicy.worker
import unilab.rl.runtime.offpolicy.double_buffer_runner, unilab.rl.runtime.distributed.sync
import unilab.rl.runtime.ipc.weight_sync, unilab.rl.runtime.ipc.tensor_rollout_ring_buffer
import unilab.rl.algos.sac.learner, unilab.rl.algos.flash_sac.learner
import unilab.rl.algos.appo.learner, unilab.rl.algos.appo.staging
"""


@pytest.mark.parametrize(
    ("package", "imports", "num_parts"), [("uni_rl", UNI_RL, 14), ("unilab", UNILAB, 13)]
)
def test_every_part_finds_what_it_patches(package, imports, num_parts, dfx_dir):
    pytest.importorskip(package, reason=f"no {package}; `make test-frameworks` installs it")
    job = f"""{imports}
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
    parts = observe(job, stubs=("rsl_rl", "hydra")).parts(package)
    # of unilab-rl before 1.4
    parts = {part: state for part, state in parts.items() if part not in {"fast_sac", "fast_td3"}}
    assert parts == dict.fromkeys(parts, 1.0)
    assert len(parts) == num_parts
