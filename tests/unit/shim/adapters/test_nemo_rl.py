"""NeMo-RL: a logger that gets five reports a step under prefixes, and timers with labels."""

from __future__ import annotations

from shapes import Shapes

# call shapes of NVIDIA-NeMo/RL 7ea279a
NEMO_RL = Shapes(
    variable="DFX_TEST_NEMO_RL",
    stubs=(
        "ray", "mlflow", "wandb", "swanlab", "matplotlib", "rich", "prometheus_client", "hydra",
        "transformers", "omegaconf",
    ),
    sources={
        "nemo_rl/__init__.py": "",
        # nemo_rl/utils/logger.py:1035
        "nemo_rl/utils/logger.py": """
            class Logger:
                def log_metrics(self, metrics, step, prefix="", step_metric=None,
                                step_finished=False):
                    for logger in self.loggers:
                        logger.log_metrics(metrics, step, prefix, step_metric, step_finished)
        """,
        # nemo_rl/utils/timer.py:86-118, 197
        "nemo_rl/utils/timer.py": """
            from contextlib import contextmanager
            class Timer:
                def __init__(self, context=None):
                    self.running = set()
                def start(self, label, should_log=True):
                    if label in self.running:
                        raise ValueError(f"Timer '{label}' is already running")
                    self.running.add(label)
                def stop(self, label, should_log=True):
                    self.running.remove(label)
                    return 0.5
                @contextmanager
                def time(self, label, should_log=True):
                    try:
                        self.start(label, should_log=should_log)
                        yield
                    finally:
                        self.stop(label, should_log=should_log)
        """,
    },
)  # fmt: skip


@NEMO_RL.each_place
def test_reports_have_their_prefix_and_the_last_one_ends_the_step(where, tmp_path, dfx_dir):
    job = """
from nemo_rl.utils.logger import Logger
logger = Logger.__new__(Logger)
logger.loggers = []
logger.log_metrics({"reward": 0.5, "per_worker": {"0": 1}}, 3, prefix="train")
logger.log_metrics({"node.0.gpu": 9.0, "ray/ray_step": 77}, 77, "ray", "ray/ray_step")
logger.log_metrics({"total_step_time": 2.0}, 3, prefix="timing/train", step_finished=True)
logger.log_metrics({"efficiency": 0.75}, 4)
"""
    seen = NEMO_RL.run(where, job, tmp_path)
    scalars = seen.scalars()
    assert scalars["train/reward", 3] == [0.5]
    assert scalars["timing/train/total_step_time", 3] == [2.0]
    assert scalars["efficiency", 4] == [0.75]
    assert not [key for key in scalars if key[1] == 77]
    assert seen.steps() == [4]
    assert seen.identity["framework"] == "nemo_rl"
    assert seen.num_errors == 0


@NEMO_RL.each_place
def test_timers_are_stages_and_parts_of_them_are_not(where, tmp_path, dfx_dir):
    job = """
from nemo_rl.utils.timer import Timer
timer = Timer({"worker": "driver"})
with timer.time("total_step_time"):
    with timer.time("generation"):
        pass
    with timer.time("exposed_generation"):
        pass
    with timer.time("policy_training"), timer.time("policy_training/sharding_data"):
        pass
    with timer.time("prepare_for_generation/total"):
        pass
    with timer.time("data_processing"):
        pass
timer.start("generation")
try:
    timer.start("generation")
except ValueError as error:
    assert "already running" in str(error)
timer.stop("generation")
"""
    seen = NEMO_RL.run(where, job, tmp_path)
    assert seen.names("stage") == [
        "rollout", "actor_update", "weight_sync", "data_processing", "rollout",
    ]  # fmt: skip
    assert seen.names("wait") == ["queue"]
    assert seen.num_errors == 0
