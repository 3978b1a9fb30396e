"""miles: slime's functions under other module names, and one object as arguments of a rollout."""

from __future__ import annotations

from shapes import Shapes

# call shapes of radixark/miles 31f1ca9
MILES = Shapes(
    variable="DFX_TEST_MILES",
    stubs=("megatron", "sglang", "sglang_router", "ring_flash_attn", "wandb"),
    sources={
        "miles/__init__.py": "",
        # miles/utils/tracking_utils/tracking.py:47
        "miles/utils/tracking_utils/tracking.py": """
            def log(args, metrics, step_key: str):
                return metrics.get(step_key)
        """,
        # miles/utils/timer.py:15
        "miles/utils/timer.py": """
            class Timer:
                def start(self, name):
                    pass
                def end(self, name):
                    pass
        """,
        # miles/ray/rollout/metrics.py:72
        "miles/ray/rollout/metrics.py": """
            def log_rollout_data(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
                return len(samples)
        """,
        # miles/rollout/base_types.py:28, 89
        "miles/rollout/base_types.py": """
            from dataclasses import dataclass
            @dataclass(frozen=True)
            class RolloutFnTrainInput:
                rollout_id: int
                evaluation = False
            @dataclass(frozen=True)
            class RolloutFnEvalInput:
                rollout_id: int
                evaluation = True
            def call_rollout_fn(fn, *args, evaluation: bool, **kwargs):
                return fn(*args, **kwargs, evaluation=evaluation)
        """,
        # miles/rollout/inference_rollout/compatibility.py:42
        "miles/rollout/inference_rollout/compatibility.py": """
            def call_rollout_function(fn, input):
                return fn(input)
        """,
        # miles/backends/megatron_utils/actor.py:386-472
        "miles/backends/megatron_utils/actor.py": """
            class MegatronTrainRayActor:
                def train(self, rollout_id, rollout_data_ref, witness_info=None, attempt=0,
                          external_data=None):
                    return self.train_actor(rollout_id, rollout_data_ref, witness_info=None,
                                            attempt=attempt)
                def train_critic(self, rollout_id: int, rollout_data):
                    return {}
                def train_actor(self, rollout_id, rollout_data, external_data=None, *,
                                witness_info, attempt):
                    return "trained"
        """,
    },
)


@MILES.each_place
def test_reports_and_timers_are_those_of_slime(where, tmp_path, dfx_dir):
    job = """
from miles.utils.tracking_utils import tracking
from miles.utils.timer import Timer
timer = Timer()
for name in ("train_wait", "actor_train", "update_weights"):
    timer.start(name)
    timer.end(name)
tracking.log(None, {"rollout/raw_reward": 5.0, "rollout/step": 3}, step_key="rollout/step")
tracking.log(None, {"train/loss": 0.5, "train/step": 47}, step_key="train/step")
"""
    seen = MILES.run(where, job, tmp_path)
    assert seen.scalars()["rollout/raw_reward", 3] == [5.0]
    assert seen.scalars()["train/loss", 47] == [0.5]
    assert seen.names("wait") == ["queue"]
    assert seen.names("stage") == ["actor_update", "weight_sync"]
    assert seen.steps() == [4]
    assert seen.identity["framework"] == "miles"
    assert seen.num_errors == 0


@MILES.each_place
def test_a_rollout_and_a_training_begin_their_step(where, tmp_path, dfx_dir):
    job = """
from miles.rollout.base_types import RolloutFnEvalInput, RolloutFnTrainInput, call_rollout_fn
from miles.rollout.inference_rollout.compatibility import call_rollout_function
assert call_rollout_function(lambda input: "out", RolloutFnTrainInput(rollout_id=4)) == "out"
assert call_rollout_function(lambda input: "out", RolloutFnEvalInput(rollout_id=4)) == "out"
call_rollout_fn(lambda *args, evaluation: [], None, 5, None, evaluation=False)
"""
    seen = MILES.run(where, job, tmp_path)
    assert seen.names("stage") == ["rollout", "validation", "rollout"]
    assert seen.steps() == [4, 5]
    assert seen.identity["role"] == "rollout"
    assert seen.num_errors == 0


def test_a_training_actor_has_its_role_and_step(tmp_path, dfx_dir):
    job = """
from miles.backends.megatron_utils.actor import MegatronTrainRayActor
actor = MegatronTrainRayActor()
actor.role = "actor"
assert actor.train(7, {"rewards": [1.0]}) == "trained"
"""
    seen = MILES.on_copy(job, tmp_path)
    assert seen.steps() == [7]
    assert seen.identity["role"] == "actor"
    assert set(seen.parts("miles").values()) == {1.0, 0.0}
    assert seen.num_errors == 0
