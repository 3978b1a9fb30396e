"""torch's flight recorder of NCCL: written by the guest, read by the agent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

from dfx_agent.node.segments import flight  # noqa: E402 (after the visible skip)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)

ROOT = Path(__file__).resolve().parents[2]
JOB = """
import sys, torch, torch.distributed as dist
from dfx_agent.shim.torch.flight import write_flight
from dfx_agent.shim.stacks import write_stacks
dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
for number in range(3):
    dist.all_reduce(torch.ones(2, 4, device="cuda"))
torch.cuda.synchronize()
assert write_stacks(sys.argv[1])
print(write_flight(sys.argv[1]))
dist.destroy_process_group()
"""


def test_the_newest_collectives_of_nccl_are_read_by_the_agent(tmp_path):
    if not hasattr(torch._C._distributed_c10d, "_dump_nccl_trace_json"):
        pytest.skip("this torch does not dump its flight recorder as JSON; 2.5 and newer do")
    segment = str(tmp_path / "1-a.seg")
    ran = subprocess.run(
        [sys.executable, "-c", JOB, segment],
        capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCH_NCCL_TRACE_BUFFER_SIZE": "100"},
    )  # fmt: skip
    assert ran.stdout == "True\n"
    ((key, group),) = flight.read_flight(segment, 0).groups.items()
    assert (key.backend, key.name, group.members) == ("nccl", "0", (0,))
    last = group.entries[0]
    assert (last.operation, last.tensors) == ("all_reduce", " [2, 4] float32")
    assert len(group.entries) == 3
