"""RLinf's timers in other versions: called as they were, and left alone where they cannot be."""

from __future__ import annotations

from contextlib import contextmanager
from types import ModuleType

import pytest
from shapes import Shapes

from dfx_agent.shim.adapters import rlinf
from dfx_agent.shim.patches import PatchSet
from dfx_agent.wire.records import LEDGER_MODULUS


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "")
    patches = PatchSet("test.rlinf")
    yield patches
    patches.restore()


def test_arguments_that_we_do_not_know_are_handed_on(hook):
    class ScopedTimer:
        @contextmanager
        def __call__(self, name, *, synchronize=False):
            yield name, synchronize

    module = ModuleType("rlinf_of_tomorrow")
    module.ScopedTimer = ScopedTimer
    hook.install(lambda patches: rlinf._patch_runner_timer(patches, module))
    assert hook.state == "active"
    with ScopedTimer()("rollout", synchronize=True) as first, ScopedTimer()(name="eval") as second:
        assert (first, second) == (("rollout", True), ("eval", False))


def test_the_caller_is_the_tag_and_a_tag_that_is_given_stays(hook):
    class Worker:
        @contextmanager
        def worker_timer(self, tag=None, unit="s"):
            yield tag, unit

    def run_training(**given):
        with Worker().worker_timer(**given) as seen:
            return seen

    module = ModuleType("rlinf_of_today")
    module.Worker = Worker
    hook.install(lambda patches: rlinf._patch_worker(patches, module))
    assert hook.state == "active"
    assert run_training() == ("run_training", "s")
    assert run_training(tag=None, unit="ms") == ("run_training", "ms")
    assert run_training(tag="predict") == ("predict", "s")
    hook.switch.is_on = False
    assert run_training() == ("run_training", "s")


def test_a_timer_without_a_tag_is_left_alone(hook):
    class Worker:
        def worker_timer(self):
            return "untouched"

    module = ModuleType("rlinf_of_yesterday")
    module.Worker = Worker
    hook.install(lambda patches: rlinf._patch_worker(patches, module))
    assert hook.state == "absent"
    assert Worker().worker_timer() == "untouched"


# of rlinf 0.3.0; a checkout or a package folder is named by the variable
RLINF = Shapes(
    "DFX_TEST_RLINF",
    {
        "rlinf/__init__.py": "",
        "rlinf/workers/__init__.py": "",
        "rlinf/workers/actor/__init__.py": "",
        "rlinf/workers/actor/fsdp_actor_worker.py": """
            class FSDPModelManager:
                def load_checkpoint(self, load_path): return load_path
            class FSDPActor(FSDPModelManager):  # fsdp_actor_worker.py:146
                response_len = 4
                def compute_advantages_and_returns(self, batch): return batch
                def training_step(self, batch): return batch
                def run_training(self, input_channel, do_offload=False):
                    batch = self.compute_advantages_and_returns(input_channel)
                    rows = list(reversed(range(len(batch["input_ids"]))))  # shuffled
                    halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
                    for half in halves:
                        self.training_step(batch={k: v[half] for k, v in batch.items()})
            class EmbodiedFSDPActor(FSDPModelManager):  # fsdp_actor_worker.py:1018
                def set_global_step(self, global_step): self.version = global_step
                def compute_advantages_and_returns(self): return {}
                def train_micro_batch(self, micro_batch, metrics, *, is_last): return None
            """,
        "rlinf/workers/megatron_worker.py": """
            class MegatronWorker:  # megatron_worker.py:90
                response_len, role = 4, "critic"
                def compute_advantages_and_returns(self, batch): return batch
                def training_step(self, batch): return batch
                def run_training(self, input_channel): return self.training_step(input_channel)
            """,
    },
)
LANGUAGE = """
import torch
from rlinf.workers.actor.fsdp_actor_worker import FSDPActor
from rlinf.workers.megatron_worker import MegatronWorker
def batch(width=4):  # data/io_struct.py:696, to_actor_batch
    mask = torch.zeros(8, 10, dtype=torch.bool)
    mask[:, 6:9] = True
    return {"input_ids": torch.arange(80).reshape(8, 10), "response_mask": mask,
            "attention_mask": torch.ones(8, 10), "response_lengths": torch.full((8,), 3),
            "rewards": torch.arange(8.0), "rollout_logprobs": torch.ones(8, width),
            "advantages": torch.ones(8, 4), "multi_modal_inputs": [{}] * 8}
"""


def test_an_actor_of_language_is_followed_from_advantages_to_training(tmp_path, dfx_dir):
    job = f"""{LANGUAGE}
actor = FSDPActor()
given = {{k: v for k, v in batch().items() if hasattr(v, "dtype")}}
actor.run_training(given)
given["rewards"] = given["rewards"].flip(0)
actor.run_training(given)
actor.load_checkpoint("/saved/checkpoints/global_step_40/actor")
actor.run_training(given)
"""
    seen = RLINF.on_copy(job, tmp_path)
    before, after = seen.ledger("advantage"), seen.ledger("actor_update")
    assert before["num_rows", ""] == [8.0] * 3
    assert after["num_rows", ""] == [4.0] * 6
    assert before["mask_sum", "response_mask"] == [24.0] * 3
    assert not any(before["num_misaligned", "rollout_logprobs"])
    for field, column in [
        ("multiset", "sample_ids"),
        ("aligned", "rewards"),
        ("values", "rewards"),
    ]:
        first, second = after[field, column][:2]
        assert (first + second) % LEDGER_MODULUS == before[field, column][0], (field, column)
    assert before["values", "rewards"][0] == before["values", "rewards"][1]
    assert before["aligned", "rewards"][0] != before["aligned", "rewards"][1]
    assert seen.steps() == [1, 2, 40, 41]
    assert seen.num_errors == 0


def test_a_critic_of_megatron_and_what_is_no_batch(tmp_path, dfx_dir):
    job = f"""{LANGUAGE}
critic = MegatronWorker()
critic.run_training(batch(width=3))
critic.training_step(iter([]))  # a pipeline draws for itself
empty = torch.zeros(0)
critic.training_step({{"input_ids": empty, "response_mask": empty, "rewards": empty}})
"""
    seen = RLINF.on_copy(job, tmp_path)
    given = seen.ledger("critic_update")
    assert given["num_rows", ""] == [8.0]
    assert given["num_misaligned", "rollout_logprobs"] == [8.0]
    assert seen.steps() == [1]
    assert seen.num_errors == 0


def test_an_embodied_actor_has_its_step_and_counts_environment_steps(tmp_path, dfx_dir):
    job = """
import torch
from rlinf.workers.actor.fsdp_actor_worker import EmbodiedFSDPActor
actor = EmbodiedFSDPActor()
actor.set_global_step(global_step=7)
T, N, CHUNK = 5, 4, 2
rewards = torch.rand(T, N, CHUNK)
batch = {"rewards": rewards, "loss_mask": torch.ones(T, N, CHUNK, dtype=torch.bool),
         "dones": torch.zeros(T + 1, N, CHUNK), "prev_values": torch.zeros(T + 1, N, 1),
         "prev_logprobs": torch.zeros(T, N, 14), "versions": None,
         "forward_inputs": {"pixels": torch.zeros(T, N, 3)}}
actor.rollout_batch = batch
actor.compute_advantages_and_returns()
batch["advantages"] = rewards.clone()
batch["advantages"][0, 0, 0] = float("nan")
def flat(name, value):  # process_nested_dict_for_train
    value = value[:-1] if name in ("dones", "prev_values") else value
    return value.reshape(-1, *value.shape[2:])
rows = {k: flat(k, v) for k, v in batch.items() if hasattr(v, "dtype")}
for at in range(0, T * N, 10):
    actor.train_micro_batch({k: v[at : at + 10] for k, v in rows.items()}, {}, is_last=False)
chunks = dict(rows, loss_mask=rows["loss_mask"][:, :1])
actor.train_micro_batch(chunks, metrics={}, is_last=True)
"""
    seen = RLINF.on_copy(job, tmp_path)
    before, after = seen.ledger("advantage"), seen.ledger("actor_update")
    assert before["num_rows", ""] == [20.0]
    assert after["num_rows", ""] == [10.0, 10.0, 20.0]
    assert before["mask_sum", "loss_mask"] == [40.0]
    assert after["mask_sum", "loss_mask"] == [20.0, 20.0], "not the mask of whole chunks"
    assert after["num_nonfinite", "advantages"] == [1.0, 0.0, 1.0]
    for side in (before, after):
        assert not any(any(v) for (field, _), v in side.items() if field == "num_misaligned")
    assert "forward_inputs.pixels" not in {column for _, column in after}
    assert seen.steps() == [7]
    assert seen.num_errors == 0
