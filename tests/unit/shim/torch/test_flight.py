"""The guest writes torch's flight recorder once where the process stands still; never raises."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dfx_agent.judge.unfinished import first_unfinished
from dfx_agent.node.segments import flight as agent_flight
from dfx_agent.shim.torch import flight
from dfx_agent.shim.torch.flight import FlightWriter, write_flight

ROOT = Path(__file__).resolve().parents[3]
SECOND = 10**9
STILL = (1, 0, None, (5,))

JOB = """
import sys, torch, torch.distributed as dist
from dfx_agent.shim.torch.flight import write_flight
from dfx_agent.shim.stacks import write_stacks
assert write_stacks(sys.argv[1])
assert not write_flight(sys.argv[1]), "torch.distributed is not initialised"
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
for number in range(40):
    dist.all_reduce(torch.ones(2, 4))
dist.all_reduce(torch.ones(3, dtype=torch.bfloat16), group=dist.new_group([0]))
print(write_flight(sys.argv[1]))
"""


def entry(sequence: int, name: str = "0", **changes: Any) -> dict[str, Any]:
    return {
        "profiling_name": "gloo:all_reduce", "process_group": [name, "default_pg"], "pg_id": 0,
        "collective_seq_id": sequence, "input_sizes": [[8]], "input_dtypes": ["Float"],
        "output_sizes": [[8]], "output_dtypes": ["Float"], "time_created_ns": sequence,
        "state": "scheduled", "retired": True, "is_p2p": False, **changes,
    }  # fmt: skip


class Torch:
    """What of torch.distributed is asked, and how often the recorder was dumped."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.num_dumps = 0
        self.is_initialized = True
        world = types.SimpleNamespace(pg_group_ranks={7: {3: 0, 2: 1}}, pg_names={7: "0", 8: "1"})
        self.distributed = types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: self.is_initialized,
            get_rank=lambda: 3,
            distributed_c10d=types.SimpleNamespace(_world=world),
        )
        self.c10d = types.SimpleNamespace(_dump_fr_trace_json=self._dump)

    def _dump(self) -> bytes:
        self.num_dumps += 1
        return json.dumps({"version": "2.10", "entries": self.entries}).encode()


@pytest.fixture
def torch(monkeypatch, tmp_path) -> Torch:
    known = Torch()
    monkeypatch.setitem(sys.modules, "torch.distributed", known.distributed)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", known.c10d)
    (tmp_path / "1-a.stacks").write_text('File "train.py", line 1 in main')
    return known


def written(folder: Path) -> agent_flight.FlightRecord | None:
    return agent_flight.read_flight(str(folder / "1-a.seg"), 0)


def write(folder: Path) -> bool:
    return write_flight(str(folder / "1-a.seg"))


def test_the_last_entries_of_real_torch_are_read_by_the_agent(tmp_path):
    c10d = pytest.importorskip(
        "torch._C._distributed_c10d", reason="torch is not installed: pip install -e '.[demo]'"
    )
    if not hasattr(c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch records nothing of gloo; 2.13 and newer do")
    ran = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path / "1-a.seg")],
        capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.stdout == "True\n"
    groups = {key.name: group for key, group in written(tmp_path).groups.items()}
    last = groups["0"].entries[0]
    assert (last.operation, last.tensors, last.sequence) == (
        "all_reduce", " [2, 4] float32", 40,
    )  # fmt: skip
    assert (len(groups["0"].entries), groups["0"].members) == (16, (0,))
    assert groups["1"].entries[0].tensors == " [3] bfloat16"
    file = tmp_path / "1-a.flight"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".flight", ".stacks"]


def test_the_last_and_the_oldest_unfinished_of_each_group(torch, tmp_path):
    torch.entries = [entry(n, retired=n not in {5, 6, 40}) for n in range(1, 41)]
    assert write(tmp_path)
    ((key, group),) = written(tmp_path).groups.items()
    assert [e.sequence for e in group.entries] == [*range(40, 24, -1), 5]
    assert (key.name, group.members, written(tmp_path).rank) == ("0", (2, 3), 3)


def test_an_earlier_group_of_the_same_name_is_left_out(torch, tmp_path):
    torch.entries = [entry(50), entry(51), entry(1), entry(2)]
    assert write(tmp_path)
    torch.entries += [entry(3, pg_id=4)]
    ((_, group),) = written(tmp_path).groups.items()
    assert [e.sequence for e in group.entries] == [2, 1]
    assert write(tmp_path)
    ((_, group),) = written(tmp_path).groups.items()
    assert [e.sequence for e in group.entries] == [3]


def test_the_longest_gap_is_that_of_the_newer_half(torch, tmp_path):
    begins = [0, 900, 901, 902, 903, 918, 919]  # a load of 900 s, then a rollout of 15 s
    torch.entries = [entry(n, time_created_ns=t * 10**9) for n, t in enumerate(begins, 1)]
    assert write(tmp_path)
    assert written(tmp_path).longest_gap_ns == 15 * 10**9


def test_a_thousand_groups_make_a_small_file(torch, tmp_path):
    wide = {"input_sizes": [[2**40] * 10] * 20, "input_dtypes": ["ComplexDouble"] * 20}
    torch.entries = [entry(i, f"{n}" * 500, **wide) for n in range(1000) for i in range(1, 3)]
    assert write(tmp_path)
    assert (tmp_path / "1-a.flight").stat().st_size <= flight.MAX_BYTES
    torch.entries = [entry(i, f"{n}") for n in range(1000) for i in range(1, 3)]
    assert write(tmp_path)
    assert len(written(tmp_path).groups) == 32


@pytest.mark.parametrize("broken", ["none", "empty", "raises", "uninitialised", "capture", "odd"])
def test_without_entries_there_is_no_file(torch, tmp_path, monkeypatch, broken):
    torch.entries = [] if broken == "empty" else [{} if broken == "odd" else entry(1)]
    torch.is_initialized = broken != "uninitialised"
    if broken == "none":
        del torch.c10d._dump_fr_trace_json
    if broken == "raises":
        torch.c10d._dump_fr_trace_json = None
    if broken == "capture":
        frame = 'File "/site/vllm/compilation/cuda_graph.py", line 7 in __call__'
        (tmp_path / "1-a.stacks").write_text(frame)
    assert not write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["1-a.stacks"]
    assert torch.num_dumps == (broken in {"empty", "odd"})


def test_both_recorders_of_a_build_with_cuda_are_read(torch, tmp_path):
    torch.entries = [entry(1)]
    other = {"entries": [entry(1, profiling_name="nccl:all_reduce")]}
    torch.c10d._dump_nccl_trace_json = lambda: json.dumps(other)
    assert write(tmp_path)
    assert [key.backend for key in written(tmp_path).groups] == ["nccl", "gloo"]


def hccl(torch, monkeypatch, entries: list[dict[str, Any]]) -> None:
    """torch-npu's recorder, where its own tests call it; format 2.4 (Ascend/pytorch, TraceUtils.h).

    Operations have no names in it, and an entry has a description of its group of its own.
    """
    reported = {"version": "2.4", "pg_config": {}, "pg_status": {}, "entries": entries}

    c10d = types.SimpleNamespace(_dump_hccl_trace_json=lambda: json.dumps(reported).encode())
    extension = types.SimpleNamespace(_distributed_c10d=c10d)
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(_C=extension))


def hccl_entry(sequence: int, state: str) -> dict[str, Any]:
    return {
        **entry(sequence, profiling_name="", state=state, retired=state == "completed"),
        "record_id": sequence, "p2p_seq_id": 0, "op_id": sequence, "timeout_ms": 3636000,
        "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0,
    }  # fmt: skip


def test_the_recorder_of_torch_npu_is_read_next_to_that_of_torch(torch, tmp_path, monkeypatch):
    hccl(torch, monkeypatch, [hccl_entry(1, "completed"), hccl_entry(2, "scheduled")])
    torch.entries = [entry(1)]
    assert write(tmp_path)
    groups = {key.backend: group for key, group in written(tmp_path).groups.items()}
    assert set(groups) == {"gloo", "hccl"}
    last, before = groups["hccl"].entries
    assert (last.operation, last.tensors, last.sequence) == ("collective", " [8] float32", 2)
    assert (last.is_finished, before.is_finished) == (False, True)
    assert groups["hccl"].members == (2, 3)


def test_ranks_that_hang_in_hccl_are_found_by_its_recorder(torch, tmp_path, monkeypatch):
    records = {}
    for rank, num_issued in enumerate((2, 2, 1)):
        states = ["completed", "scheduled"][:num_issued]
        hccl(torch, monkeypatch, [hccl_entry(n, state) for n, state in enumerate(states, 1)])
        torch.distributed.get_rank = lambda rank=rank: rank
        assert write(tmp_path)
        records[str(rank)] = written(tmp_path)
    (found,) = first_unfinished(records)
    assert (found.sequence, list(found.issued), list(found.missing)) == (2, ["0", "1"], ["2"])
    ((labels, what),) = found.calls()
    assert (labels, what) == (["0", "1"], "collective@0 #2 [8] float32")


@pytest.mark.parametrize("broken", ["older", "off", "captures"])
def test_a_torch_npu_that_records_nothing_reports_nothing(torch, tmp_path, monkeypatch, broken):
    hccl(torch, monkeypatch, [] if broken == "off" else [hccl_entry(1, "scheduled")])
    if broken == "older":
        del sys.modules["torch_npu"]._C._distributed_c10d._dump_hccl_trace_json
    if broken == "captures":
        frame = 'File "/site/torch_npu/npu/graphs.py", line 7 in __enter__'
        (tmp_path / "1-a.stacks").write_text(frame)
    assert not write(tmp_path)


def test_it_is_dumped_once_while_nothing_moves_and_never_while_something_does(torch, tmp_path):
    torch.entries = [entry(1)]
    writer, segment = FlightWriter(), str(tmp_path / "1-a.seg")
    writer.note(0, STILL)
    assert not writer.write_once(4 * SECOND, STILL, segment)
    assert not writer.write_once(10 * SECOND, (1, (6,)), segment), "it moved at this moment"
    assert not writer.write_once(12 * SECOND, (1, (6,)), segment)
    assert torch.num_dumps == 0
    assert writer.write_once(30 * SECOND, (1, (6,)), segment)
    assert not writer.write_once(60 * SECOND, (1, (6,)), segment)
    writer.note(61 * SECOND, (None, 0, None, (6,)))
    assert writer.write_once(70 * SECOND, (None, 0, None, (6,)), segment)
    assert torch.num_dumps == 2
