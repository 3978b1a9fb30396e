"""SkyRL: a tracker that gets one or two reports a step, and timers that are context managers."""

from __future__ import annotations

from shapes import Shapes

# call shapes of NovaSky-AI/SkyRL a956457
SKYRL = Shapes(
    variable="DFX_TEST_SKYRL",
    stubs=("ray", "jaxtyping", "torchdata", "skyrl_gym", "vllm", "datasets", "loguru", "omegaconf"),
    sources={
        "skyrl/__init__.py": "__version__ = '0.3.0'",
        # skyrl/train/utils/tracking.py:79
        "skyrl/train/utils/tracking.py": """
            class Tracking:
                def log(self, data, step, commit=False):
                    self.told = data, step, commit
        """,
        # skyrl/train/utils/utils.py:32
        "skyrl/train/utils/utils.py": """
            class Timer:
                def __init__(self, message, update_dict=None):
                    self.message = message
                    self.update_dict = update_dict
                def __enter__(self):
                    return self
                def __exit__(self, exc_type, exc_val, exc_tb):
                    if self.update_dict is not None:
                        self.update_dict[self.message] = 0.0
                async def __aenter__(self):
                    return self
                async def __aexit__(self, exc_type, exc_val, exc_tb):
                    pass
        """,
    },
)


@SKYRL.each_place
def test_the_report_with_the_step_time_ends_the_step(where, tmp_path, dfx_dir):
    job = """
from skyrl.train.utils.tracking import Tracking
tracking = Tracking.__new__(Tracking)
tracking.backend = "console"
class Logger:
    def log(self, data, step):
        pass
tracking.logger = Logger()
tracking.log({"eval/all/avg_score": 0.5}, step=0, commit=True)
tracking.log({"policy/final_loss": 0.25, "reward/avg_raw_reward": 1.0}, step=1, commit=False)
tracking.log({"timing/step": 2.0, "timing/generate": 1.0}, step=1, commit=True)
"""
    seen = SKYRL.run(where, job, tmp_path)
    assert seen.scalars() == {
        ("eval/all/avg_score", 0): [0.5],
        ("policy/final_loss", 1): [0.25],
        ("reward/avg_raw_reward", 1): [1.0],
        ("timing/step", 1): [2.0],
        ("timing/generate", 1): [1.0],
    }
    assert seen.steps() == [2]
    assert seen.identity["framework"] == "skyrl"
    assert seen.num_errors == 0


@SKYRL.each_place
def test_timers_are_stages(where, tmp_path, dfx_dir):
    job = """
import asyncio
from skyrl.train.utils.utils import Timer
times = {}
with Timer("step", times):
    with Timer("generate", times) as timer:
        assert timer.message == "generate"
    with Timer("train_critic_and_policy", times), Timer("policy_train", times):
        pass
    try:
        with Timer("sync_weights"):
            raise ValueError("the job's own")
    except ValueError:
        pass
async def main():
    async with Timer("eval"):
        pass
asyncio.run(main())
assert set(times) == {"step", "generate", "train_critic_and_policy", "policy_train"}
"""
    seen = SKYRL.run(where, job, tmp_path)
    assert seen.names("stage") == [
        "rollout", "actor_update", "train_critic_and_policy", "weight_sync", "validation",
    ]  # fmt: skip
    assert seen.num_errors == 0


def test_a_module_that_looks_different_is_left_alone(tmp_path, dfx_dir):
    job = """
from skyrl.train.utils import tracking, utils
assert tracking.Tracking().log() == "mine"
assert utils.Timer == "no class"
"""
    other = {
        "skyrl/__init__.py": "",
        "skyrl/train/utils/tracking.py": """
            class Tracking:
                def log(self):
                    return "mine"
        """,
        "skyrl/train/utils/utils.py": "Timer = 'no class'",
    }
    seen = Shapes("", other).on_copy(job, tmp_path)
    assert seen.parts("skyrl") == {"tracking": 1.0, "timers": 0.0}
    assert seen.names("stage") == []
