"""RLinf's own MetricLogger, runner timer and worker timer."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest
from observed_job import observe

pytest.importorskip("rlinf", reason="no rlinf; `make test-frameworks` installs it")
pytest.importorskip("omegaconf", reason="no omegaconf; `make test-frameworks` installs it")

NEED_A_DEVICE = (
    "accelerate", "debugpy", "einops", "hydra", "nvitop", "torchdata", "icmplib", "liger_kernel",
    "vllm", "sglang", "megatron", "flash_attn", "swanlab", "wandb",
)  # fmt: skip

LOGGER = """
import tempfile
from omegaconf import OmegaConf
from rlinf.utils.metric_logger import MetricLogger
config = {"log_path": tempfile.mkdtemp(), "logger_backends": ["tensorboard"]}
logger = MetricLogger(OmegaConf.create({"runner": {"logger": config}}))
"""


def test_the_report_with_the_step_time_ends_the_step(dfx_dir):
    job = f"""{LOGGER}
logger.log({{"env/success": 0.5}}, 3)
logger.log(data={{"time/step": 1.5}}, step=3)
logger.log({{"actor/training/actor/approx_kl": float("nan")}}, 3)
logger.log({{"time/rollout": 9.0}}, 3, worker_group_name="RolloutGroup", rank=1)
logger.finish()  # its __del__ at the end of Python may wait for TensorBoard's thread for ever
"""
    seen = observe(job, stubs=NEED_A_DEVICE)
    scalars = seen.scalars()
    assert scalars.pop(("actor/training/actor/approx_kl", 3)) != [0.0]
    assert scalars == {("env/success", 3): [0.5], ("time/step", 3): [1.5]}
    assert seen.steps() == [4]
    assert seen.identity["framework"] == "rlinf"
    assert seen.num_errors == 0


def test_the_runners_timer_gives_stages(dfx_dir):
    pytest.importorskip("ray", reason="no ray; `make test-frameworks` installs it")
    job = """
from rlinf.utils.distributed import ScopedTimer
timer = ScopedTimer(reduction="max", sync_cuda=False)
with timer("step"):
    with timer("sync_weights"):
        pass
    with timer("generate_rollouts"):
        pass
assert sorted(timer.consume_durations()) == ["generate_rollouts", "step", "sync_weights"]
"""
    assert observe(job, stubs=NEED_A_DEVICE).names("stage") == ["weight_sync", "rollout"]


def test_the_workers_timer_gives_stages_and_keeps_its_own_names(dfx_dir):
    pytest.importorskip("ray", reason="no ray; `make test-frameworks` installs it")
    job = """
from rlinf.scheduler.worker.worker import Worker
class Part:
    worker_timer = Worker.worker_timer
    def __init__(self):
        self._timer_metrics, self._group_name = {}, "ActorGroup"
    def run_training(self):
        with self.worker_timer():  # the tag is the name of this function
            pass
part = Part()
part.run_training()
with part.worker_timer("compute_rewards"):
    pass
with part.worker_timer("remove_below"):
    pass
assert sorted(part._timer_metrics) == ["compute_rewards", "remove_below", "run_training"]
"""
    seen = observe(job, stubs=NEED_A_DEVICE)
    assert seen.names("stage") == ["actor_update", "reward"]
    assert seen.identity["role"] == "actor"
    assert seen.num_errors == 0


# what the ledger's hooks are called with; their modules need too many packages to be imported here
CALLED = {
    "workers/actor/fsdp_actor_worker.py": {
        "FSDPActor.compute_advantages_and_returns": ["self", "batch"],
        "FSDPActor.training_step": ["self", "batch"],
        "FSDPActor.run_training": ["self", "input_channel", "do_offload"],
        "EmbodiedFSDPActor.compute_advantages_and_returns": ["self"],
        "EmbodiedFSDPActor.train_micro_batch": ["self", "micro_batch", "metrics", "is_last"],
        "EmbodiedFSDPActor.set_global_step": ["self", "global_step"],
    },
    "workers/megatron_worker.py": {
        "MegatronWorker.compute_advantages_and_returns": ["self", "batch"],
        "MegatronWorker.training_step": ["self", "batch"],
    },
    "workers/rollout/hf/huggingface_worker.py": {
        "MultiStepRolloutWorker.set_global_step": ["self", "global_step"],
    },
    "hybrid_engines/fsdp/fsdp_model_manager.py": {
        "FSDPModelManager.load_checkpoint": ["self", "load_path"],
    },
}


@pytest.mark.parametrize("file", CALLED)
def test_the_ledger_hooks_are_called_as_they_expect(file):
    (root,) = find_spec("rlinf").submodule_search_locations
    found = {}
    for owner in ast.parse(Path(root, file).read_text()).body:
        for method in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = [*method.args.args, *method.args.kwonlyargs]
                found[f"{owner.name}.{method.name}"] = [item.arg for item in given]
    assert {name: found.get(name) for name in CALLED[file]} == CALLED[file]
