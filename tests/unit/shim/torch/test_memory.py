"""The allocator's figures: none without a device, and what a device's allocator says.

The device is a stand-in with the interface of ``torch.cuda``; tests/gpu/test_memory.py has real
ones.
"""

import ast
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dfx_agent.shim.torch import memory
from dfx_agent.shim.torch.memory import MemorySampler

GIB = 1 << 30
ROOT = Path(__file__).resolve().parents[4]


class StandIn(types.ModuleType):
    """``torch.cuda`` of a process with two devices of which it uses the second."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")
        self.has_begun = True
        self.allocated = 3 * GIB
        self.reserved = 4 * GIB
        self.num_property_reads = 0
        self.peak = 99 * GIB
        self.num_retries = 2
        self.num_ooms = 1

    def __getattr__(self, name):
        raise AssertionError(f"the sampler must not touch {name}")

    def is_initialized(self):
        return self.has_begun

    def device_count(self):
        return 2

    def memory_stats_as_nested_dict(self, index):
        assert self.has_begun, "would initialise the device"
        if index == 0:
            return {"allocated_bytes": {"all": {"current": 0}}, "reserved_bytes": {"all": {}}}
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved}},
            "active_bytes": {"all": {"current": self.allocated + 1}},
            "inactive_split_bytes": {"all": {"current": 5}},
            "num_alloc_retries": self.num_retries,
            "num_ooms": self.num_ooms,
        }

    def get_device_properties(self, index):
        self.num_property_reads += 1
        return types.SimpleNamespace(total_memory=80 * GIB)


@pytest.fixture
def cuda(monkeypatch):
    for name in ("cuda", "npu", "xpu"):
        monkeypatch.delitem(sys.modules, f"torch.{name}", raising=False)
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "torch.cuda", stand_in)
    return stand_in


@pytest.fixture
def sampled():
    """``sampled(stage)`` is what one sample emits."""
    sampler = MemorySampler()

    def sample(stage: str = "") -> dict[str, float]:
        gauges: dict[str, float] = {}
        sampler.sample(gauges.__setitem__, stage)
        return gauges

    return sample


NPU = """
import types, torch
from dfx_agent.shim.torch.memory import MemorySampler

# as torch_npu's package does it, with what torch_npu/npu/memory.py has of torch.cuda's interface
torch.utils.rename_privateuse1_backend("npu")
npu = types.ModuleType("torch_npu.npu")
npu.is_initialized, npu.device_count = lambda: True, lambda: 8
stats = {"allocated_bytes": {"all": {"current": 3}}, "reserved_bytes": {"all": {"current": 4}}}
npu.memory_stats_as_nested_dict = lambda index: stats if index == 6 else {}
npu.get_device_properties = lambda index: types.SimpleNamespace(total_memory=64)
torch._register_device_module("npu", npu)
gauges = {}
MemorySampler().sample(gauges.__setitem__, "rollout")
print({name: value for name, value in gauges.items() if "stage" not in name})
"""


def test_torch_npu_is_asked_through_the_same_accessor():
    pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
    reported = subprocess.run(
        [sys.executable, "-c", NPU], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert ast.literal_eval(reported.stdout) == {
        "memory/allocated_bytes@npu:6": 3.0,
        "memory/reserved_bytes@npu:6": 4.0,
        "memory/limit_bytes@npu:6": 64.0,
        "patch/allocator_memory": 1.0,
    }


def test_the_allocator_s_figures_of_a_used_device(cuda, sampled):
    assert sampled() == {
        "memory/allocated_bytes@cuda:1": 3 * GIB,
        "memory/reserved_bytes@cuda:1": 4 * GIB,
        "memory/active_bytes@cuda:1": 3 * GIB + 1,
        "memory/inactive_split_bytes@cuda:1": 5,
        "memory/limit_bytes@cuda:1": 80 * GIB,
        "memory/num_alloc_retries@cuda:1": 2,
        "memory/num_ooms@cuda:1": 1,
        "patch/allocator_memory": 1.0,
    }


def test_a_device_that_was_not_initialised_is_left_alone(cuda, sampled):
    cuda.has_begun = False
    assert sampled("rollout") == {}
    cuda.has_begun = True
    assert sampled()["memory/allocated_bytes@cuda:1"] == 3 * GIB


def test_the_limit_is_read_once_and_the_state_said_once(cuda, sampled):
    assert "patch/allocator_memory" in sampled()
    assert "patch/allocator_memory" not in sampled()
    assert cuda.num_property_reads == 1


def test_a_device_whose_memory_was_given_back_is_not_forgotten(cuda, sampled):
    sampled()
    cuda.allocated = cuda.reserved = 0
    assert sampled()["memory/reserved_bytes@cuda:1"] == 0.0


def test_the_peak_of_a_stage_is_the_highest_of_its_samples(cuda, sampled):
    name = "memory/stage_peak_bytes/rollout@cuda:1"
    assert sampled("rollout")[name] == 3 * GIB
    cuda.allocated = 2 * GIB
    assert name not in sampled("rollout"), "no higher: nothing new to say"
    cuda.allocated = 5 * GIB
    assert sampled("rollout")[name] == 5 * GIB
    assert sampled("backward")["memory/stage_peak_bytes/backward@cuda:1"] == 5 * GIB
    assert not any("stage_peak" in key for key in sampled(""))


def test_the_allocator_s_own_peak_is_exact_where_it_changed_within_a_stage(cuda, sampled):
    name = "memory/stage_peak_bytes/backward@cuda:1"
    assert sampled("rollout")["memory/stage_peak_bytes/rollout@cuda:1"] == 3 * GIB
    cuda.peak = 100 * GIB
    assert sampled("backward")[name] == 3 * GIB, "whose that peak was is not known"
    cuda.peak = 70 * GIB
    assert sampled("backward")[name] == 70 * GIB, "reset meanwhile: since then it was as high"
    assert name not in sampled("backward")


def test_each_stage_has_what_was_held_in_it_and_the_retries_seen_in_it(cuda, sampled):
    reported = sampled("rollout")
    assert reported["memory/stage/allocated_bytes/rollout@cuda:1"] == 3 * GIB
    assert reported["memory/stage/reserved_bytes/rollout@cuda:1"] == 4 * GIB
    assert not any("stage/num" in key for key in reported), "older than we are: of no stage"
    cuda.num_retries, cuda.num_ooms, cuda.reserved = 5, 2, 6 * GIB
    reported = sampled("backward")
    assert reported["memory/stage/num_alloc_retries/backward@cuda:1"] == 3
    assert reported["memory/stage/num_ooms/backward@cuda:1"] == 1
    assert reported["memory/stage/reserved_bytes/backward@cuda:1"] == 6 * GIB
    assert not any("memory/stage/" in key for key in sampled("backward")), "as before"


def test_the_largest_free_block_is_looked_for_now_and_then(cuda, sampled, monkeypatch):
    blocks = [("inactive", 3), ("active_allocated", 9), ("inactive", 7), ("active_pending_free", 8)]
    segment = {"device": 1, "blocks": [{"state": s, "size": n} for s, n in blocks]}
    cuda.memory_snapshot = lambda: [segment]
    seconds = [1000.0]
    monkeypatch.setattr(memory.time, "monotonic", lambda: seconds[0])
    sampler, gauges = MemorySampler(), {}
    for seconds[0] in (1000.0, 1029.0):
        sampler.sample(gauges.__setitem__, "")
    assert "memory/largest_free_bytes@cuda:1" not in gauges
    seconds[0] = 1030.0
    sampler.sample(gauges.__setitem__, "")
    assert gauges["memory/largest_free_bytes@cuda:1"] == 7


def test_stages_without_end_do_not_fill_the_name_table(cuda, sampled):
    names = {key for n in range(200) for key in sampled(f"stage-{n}") if "stage_peak" in key}
    assert len(names) == 64


def test_an_allocator_without_figures_is_said_once_and_left_alone(cuda, sampled, monkeypatch):
    monkeypatch.delattr(StandIn, "memory_stats_as_nested_dict")
    assert sampled("rollout") == {"patch/allocator_memory": -1.0}
    assert sampled("rollout") == {}


def test_what_one_torch_lacks_is_absent_not_zero(cuda, sampled):
    stats = {"allocated_bytes": {"all": {"current": 7}}, "reserved_bytes": {"all": {"current": 8}}}
    cuda.memory_stats_as_nested_dict = lambda index: stats if index else {}
    cuda.get_device_properties = lambda index: types.SimpleNamespace()
    assert sampled() == {
        "memory/allocated_bytes@cuda:1": 7.0,
        "memory/reserved_bytes@cuda:1": 8.0,
        "patch/allocator_memory": 1.0,
    }


def test_real_torch_without_a_device_emits_nothing(sampled):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    if torch.cuda.is_available():
        pytest.skip("there is a device: tests/gpu/test_memory.py looks at it")
    assert "torch.cuda" in sys.modules
    assert sampled("rollout") == {}
    assert not torch.cuda.is_initialized()
