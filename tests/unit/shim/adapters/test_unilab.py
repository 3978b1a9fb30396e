"""UniLab's learner and collector, in both packages that have them: which wait and stage is what."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from shapes import Observed, observe

# one module -> its classes, as in unilab-rl 1.4.15 and, under other names, unilab 1.5.2
RUNNER = """
    class DoubleBufferOffPolicyRunner:
        def __init__(self, logger=None, pipeline=None):
            self.logger, self.pipeline = logger, pipeline
        def learn(self):
            return self._wait_for_inference_request(expected_tick=1)
        def _wait_for_inference_request(self, *, expected_tick):
            self.logger.log_buffer_fill(1, 2)
            self.pipeline.progress()
            return expected_tick
        def _wait_for_replay_batch_ready(self, *args): return True
        def _release_inference_tick(self): return 1
        def _serve_learner_inference(self): return {}
        def _save_checkpoint(self): return None
"""
LOGGER = """
    class OffPolicyLogger:
        def log_buffer_fill(self, current, target): ...
        def log_step(self, iteration): ...
"""
PIPELINE = """
    class RING:
        _main_thread_submission = False
        def progress(self, *, wait=False): return wait
        def _submit_span_copy(self, *, start, end): return end
        def sample_large_batch(self, tick_id, batch=()): return batch
"""
SYNC = """
    class DpParameterSync:
        def broadcast_from_rank0(self, tensors): return tensors
        def allreduce_gradients(self, parameters): return parameters
        def allreduce_statistics(self, *, mean=None): return mean
"""
LEARNER = """
    class LEARNER:
        def update_critic(self): ...
        def update_actor(self): ...
        def soft_update_target(self): ...
        def read_deferred_update_metrics(self): return {}
"""
WEIGHTS = """
    class SharedWeightSync:
        def write_weights(self, state): ...
        def read_weights_into(self, state): ...
"""
WORKER = """
    def get_algo_capabilities(env): return env
    def _publish_inference_tick(queue): return True
    def _wait_for_inference_tick(queue): return True
    def _run_collector(env, replay):
        get_algo_capabilities(env)
        get_algo_capabilities(env)
        _publish_inference_tick(None)
        _wait_for_inference_tick(None)
        env.step(1)
        replay.add_batch(2)
"""
REPLAY = """
    class ReplayBuffer:
        def add_batch(self, rows): return rows
"""
APPO = """
    class APPOLearner:
        def process_batch(self, batch): ...
        def update(self, batch): ...
"""
STAGING = """
    class POOL:
        def STAGE(self, views): ...
        def batch(self): ...
"""


SOURCES = {
    "runner": RUNNER, "logger": LOGGER, "pipeline": PIPELINE, "sync": SYNC, "learner": LEARNER,
    "weights": WEIGHTS, "worker": WORKER, "replay": REPLAY, "appo": APPO, "staging": STAGING,
}  # fmt: skip


class Package:
    """Where one package has what, and what it calls the RING, LEARNER, POOL and STAGE."""

    def __init__(self, modules: dict[str, str], **names: str) -> None:
        self._modules, self._names = modules, names

    def _named(self, text: str) -> str:
        for name, value in self._names.items():
            text = text.replace(name, value)
        return text

    def observe(self, job: str, folder: Path, **env: str) -> Observed:
        """``job`` finds each module under the name of its part."""
        for part, module in self._modules.items():
            *packages, _ = module.split(".")
            for depth in range(len(packages)):
                package = folder.joinpath(*packages[: depth + 1])
                package.mkdir(parents=True, exist_ok=True)
                (package / "__init__.py").touch()
            path = folder.joinpath(*module.split(".")).with_suffix(".py")
            path.write_text(self._named(dedent(SOURCES[part])))
        imports = [f"import {module} as {part}" for part, module in self._modules.items()]
        job = "\n".join([*imports, self._named(dedent(job))])
        return observe(job, paths=[folder], env=env)


UNI_RL = {
    "runner": "uni_rl.offpolicy.double_buffer_runner", "logger": "uni_rl.logging.offpolicy",
    "pipeline": "uni_rl.ipc.replay_pipelines.gpu_resident", "sync": "uni_rl.ipc.dp_sync",
    "weights": "uni_rl.ipc.weight_sync", "worker": "uni_rl.offpolicy.worker",
    "replay": "uni_rl.ipc.replay_buffer", "appo": "uni_rl.algos.appo.learner",
    "staging": "uni_rl.algos.appo.staging",
}  # fmt: skip
UNILAB = {
    "runner": "unilab.rl.runtime.offpolicy.double_buffer_runner",
    "logger": "unilab.rl.logging.offpolicy",
    "pipeline": "unilab.rl.runtime.ipc.replay_pipelines.device",
    "sync": "unilab.rl.runtime.distributed.sync",
    "learner": "unilab.rl.algos.sac.learner", "weights": "unilab.rl.runtime.ipc.weight_sync",
    "worker": "unilab.rl.runtime.offpolicy.worker", "replay": "unilab.rl.runtime.ipc.replay_buffer",
    "appo": "unilab.rl.algos.appo.learner", "staging": "unilab.rl.algos.appo.staging",
}  # fmt: skip
TENSORS = {"POOL": "TensorRolloutStagingPool", "STAGE": "stage_tensor_views"}
PACKAGES = {
    "unilab-rl 0.2": Package(
        UNI_RL | {"learner": "uni_rl.algos.fast_sac.learner"},
        RING="GPUResidentReplayPipeline", LEARNER="FastSACLearner",
        POOL="RolloutStagingPool", STAGE="stage_numpy_views",
    ),
    "unilab-rl 1.4": Package(
        UNI_RL | {"learner": "uni_rl.algos.flash_sac.learner"},
        RING="GPUResidentReplayPipeline", LEARNER="FlashSACLearner", **TENSORS,
    ),
    "unilab 1.5": Package(UNILAB, RING="DeviceReplayPipeline", LEARNER="SACLearner", **TENSORS),
}  # fmt: skip
EVERY = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES.keys())


@EVERY
def test_the_four_waits_stay_four_and_logging_is_in_none_of_them(package, tmp_path, dfx_dir):
    job = """
    ring = pipeline.RING()
    run = runner.DoubleBufferOffPolicyRunner(logger.OffPolicyLogger(), ring)
    assert run.learn() == 1
    assert ring.progress(wait=True) is True
    run._release_inference_tick()
    run._wait_for_replay_batch_ready()
    sync.DpParameterSync().allreduce_statistics(mean={})
    run.logger.log_step(1)
    """
    seen = package.observe(job, tmp_path)
    # in the order of their ends: the refreshed line lies within the wait for the collector
    assert seen.names("wait") == [
        "logger", "collector", "collector", "sync_coordination", "replay_batch", "barrier",
        "logger",
    ]  # fmt: skip
    assert (seen.identity["framework"], seen.identity["role"]) == ("unilab", "learner")
    assert seen.num_errors == 0


@EVERY
def test_kinds_of_work_differ(package, tmp_path, dfx_dir):
    job = """
    copies = pipeline.RING()
    copies._submit_span_copy(start=0, end=1)  # by a thread beside the learner: no part of it
    copies._main_thread_submission = True
    copies._submit_span_copy(start=0, end=1)
    copies.sample_large_batch(1)
    learns = learner.LEARNER()
    learns.update_critic()
    learns.update_actor()
    learns.soft_update_target()
    learns.read_deferred_update_metrics()
    sync.DpParameterSync().allreduce_gradients([])
    weights.SharedWeightSync().write_weights({})
    staged = staging.POOL()
    staged.STAGE({})
    staged.batch()
    trains = appo.APPOLearner()
    trains.process_batch({})
    trains.update({})
    """
    seen = package.observe(job, tmp_path)
    assert seen.names("stage") == [
        "h2d", "replay_sample", "critic_update", "actor_update", "target_update", "actor_update",
        "param_sync", "weight_sync", "h2d", "replay_sample", "advantage", "actor_update",
    ]  # fmt: skip
    assert seen.names("wait") == []


COLLECT = """
class Env:
    def step(self, action): return action
    def close(self): ...
worker._run_collector(Env(), replay.ReplayBuffer())
weights.SharedWeightSync().read_weights_into({})
assert Env().step(3) == 3
"""


@EVERY
def test_the_cycle_of_the_collector_differs(package, tmp_path, dfx_dir):
    seen = package.observe(COLLECT, tmp_path)
    assert seen.names("wait") == ["sync_coordination", "policy"]
    assert seen.names("stage") == ["env_step", "replay", "weight_sync", "env_step"]
    assert seen.identity["role"] == "collector"
    assert seen.num_errors == 0


def test_the_environment_is_given_back_when_the_guest_leaves(tmp_path, dfx_dir):
    job = f"""{COLLECT}
import dfx_agent.shim as dfx
assert Env.step.__code__ is not Env.step.__wrapped__.__code__
dfx.shutdown()
assert not hasattr(Env.step, "__wrapped__")
dfx.init()
dfx.scalar("there", 1.0)
"""
    PACKAGES["unilab-rl 1.4"].observe(job, tmp_path)


@pytest.mark.parametrize(
    ("env", "rank", "world_size"),
    [
        ({}, 0, -1),
        ({"UNILAB_DP_RANK": "3", "UNILAB_DP_WORLD_SIZE": "4"}, 3, 4),
        ({"UNILAB_DP_RANK": "3", "RANK": "1", "WORLD_SIZE": "2"}, 1, 2),  # torchrun's is known
    ],
)
def test_a_rank_that_only_unilab_numbers_has_its_number(env, rank, world_size, tmp_path, dfx_dir):
    job = "worker._wait_for_inference_tick(None)"
    seen = PACKAGES["unilab-rl 1.4"].observe(job, tmp_path, **env)
    assert (seen.identity["rank"], seen.identity["world_size"]) == (rank, world_size)


ROLLOUTS = """
import torch
import dfx_agent.shim as dfx
dfx.set_step(4)
learns = appo.APPOLearner()
STEPS, ENVS = 6, 3  # algos/appo/staging.py:24: [T, N, ...], and [N, ...] for what comes last
batch = {name: torch.ones(STEPS, ENVS) for name in ("actions_log_prob", "rewards", "dones")}
batch |= {"observations": torch.ones(STEPS, ENVS, 5), "last_obs": torch.ones(ENVS, 5)}
learns.process_batch(batch)
batch["advantages"] = torch.ones(STEPS, ENVS)
batch["advantages"][2, 1] = float("nan")
batch["_appo_process_metrics"] = {"Train/vtrace_rho_p99": 1.0}
learns.update(batch)
"""


@EVERY
def test_rollouts_are_in_the_ledger_before_and_after_advantages(package, tmp_path, dfx_dir):
    seen = package.observe(ROLLOUTS, tmp_path)
    before, after = seen.ledger("advantage"), seen.ledger("actor_update")
    assert before["num_rows", ""] == after["num_rows", ""] == [6.0]
    assert after["num_nonfinite", "advantages"] == [1.0]
    assert not any(any(values) for (field, _), values in after.items() if field == "num_misaligned")
    assert not {"last_obs", "_appo_process_metrics"} & {column for _, column in after}
    assert seen.num_errors == 0


def test_what_an_off_policy_learner_draws_is_looked_at_now_and_then(tmp_path, dfx_dir):
    job = """
    import torch
    drawn = {"obs": torch.ones(40_000, 2), "rewards": torch.full((40_000,), float("inf"))}
    ring = pipeline.RING()
    assert all(ring.sample_large_batch(tick, drawn) is drawn for tick in range(5))
    """
    seen = PACKAGES["unilab 1.5"].observe(job, tmp_path)
    given = seen.ledger("replay_sample")
    assert given["num_rows", ""] == [40_000.0]
    assert given["num_sampled", "rewards"] == given["num_nonfinite", "rewards"]
    assert seen.names("stage") == ["replay_sample"] * 5
    assert seen.num_errors == 0
