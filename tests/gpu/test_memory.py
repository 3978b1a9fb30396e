"""The allocator's figures on a real GPU: read without a wait, a new context or a reset."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

from dfx_agent.shim.memory_points import record_memory  # noqa: E402 (after the visible skip)
from dfx_agent.shim.torch.memory import MemorySampler  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)

MIB = 1 << 20
UNTOUCHED = """
import torch
from dfx_agent.shim.torch.memory import MemorySampler
gauges = {}
MemorySampler().sample(gauges.__setitem__, "rollout")
print(gauges, torch.cuda.is_initialized())
"""


def sampled(sampler: MemorySampler, stage: str) -> dict[str, float]:
    gauges: dict[str, float] = {}
    sampler.sample(gauges.__setitem__, stage)
    return gauges


def test_allocated_memory_is_what_torch_says_and_its_peak_is_left_alone():
    sampler = MemorySampler()
    stored = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda:0")
    big = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda:0")
    high = sampled(sampler, "backward")
    del big
    peak = torch.cuda.max_memory_allocated(0)
    low = sampled(sampler, "backward")
    assert low["memory/allocated_bytes@cuda:0"] == torch.cuda.memory_allocated(0) >= stored.nbytes
    assert low["memory/reserved_bytes@cuda:0"] == torch.cuda.memory_reserved(0)
    assert low["memory/limit_bytes@cuda:0"] == torch.cuda.get_device_properties(0).total_memory
    assert low["memory/num_ooms@cuda:0"] == 0
    assert high["memory/stage_peak_bytes/backward@cuda:0"] == peak >= 768 * MIB
    assert torch.cuda.max_memory_allocated(0) == peak


def test_what_offloading_gives_back_is_what_torch_says():
    stored = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda:0")
    gauges: dict[str, float] = {}
    record_memory(gauges.__setitem__, "end/onload", "offload")
    before = torch.cuda.memory_allocated(0)
    del stored
    torch.cuda.empty_cache()
    record_memory(gauges.__setitem__, "end/offload", "offload")
    at = "memory/at/{}/{}_bytes/offload@cuda:0"
    assert gauges[at.format("end/onload", "allocated")] == before >= 256 * MIB
    assert gauges[at.format("end/offload", "allocated")] == torch.cuda.memory_allocated(0)
    assert gauges[at.format("end/offload", "reserved")] == torch.cuda.memory_reserved(0)


def test_a_busy_device_is_not_waited_for():
    sampler = MemorySampler()
    torch.ones(1, device="cuda")
    sampled(sampler, "")
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(300_000_000)
        assert sampled(sampler, "forward")
        record_memory(lambda *_: None, "start/onload", "busy")
        assert not torch.cuda.current_stream().query(), "the device was idle: this says nothing"
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


def test_a_process_that_has_not_touched_its_device_does_not_either():
    done = subprocess.run(
        [sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "{} False"
