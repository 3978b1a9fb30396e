"""Two ranks whose collectives C++ issues: functional ones, DTensor, a compiled graph, DDP.

torch >= 2.14 tells of them; with an older one the checks say so, and nothing else.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from seen import RANK, Seen, checks_of, collectives, join, num_guest_errors, open_now, report, seen
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from dfx_agent.shim import group_hooks, hooks, torch_hooks
from dfx_agent.shim.collectives import group_of
from dfx_agent.wire.records import COLLECTIVE, COLLECTIVE_WAIT

HAS_HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")
HOOKED_SECONDS = 30
NUMEL = 8
ONE = 4 * NUMEL  # bytes of one float32 tensor

model = nn.Linear(4, 4)
group: dist.ProcessGroup
graphs: list[str] = []


class Skipped(Exception):  # noqa: N818 (no error)
    """Told as such by the test."""


def needs_hooks() -> None:
    if not HAS_HOOKS:
        raise Skipped(f"torch {torch.__version__} has no ProcessGroup.register_pre_hook (>= 2.14)")


def x() -> torch.Tensor:
    return torch.ones(NUMEL)


def backward() -> None:
    """What lets hooks in and out."""
    model(torch.ones(2, 4)).sum().backward()


def issue() -> None:
    functional.all_reduce(x(), "sum", group).add(1)


def is_hooked() -> bool:
    return group.group_name in {followed.name for followed in group_hooks._hooked}


def until_all(holds, step) -> None:
    """``step`` until ``holds`` on both ranks, the same number of times on each."""
    end = time.monotonic() + HOOKED_SECONDS
    while True:
        step()
        answers = torch.tensor([holds(), time.monotonic() < end], dtype=torch.int)
        dist.all_reduce(answers, dist.ReduceOp.MIN)
        if answers[0]:
            return
        assert answers[1], "not within the deadline"
        time.sleep(0.1)


def hook(*, by_hand: bool = True) -> None:
    """``by_hand``: without waiting for the guest's own thread, which looks once a second."""

    def step() -> None:
        for _ in range(5):
            issue()
        if by_hand:
            group_hooks.look()
        backward()

    until_all(is_hooked, step)
    seen()


def num_hooks_in_torch() -> int:
    """Ours that are alive: torch holds the only references."""
    gc.collect()
    return sum(type(each) is group_hooks._Hooks for each in gc.get_objects())


def recorded(call) -> list[Seen]:
    """Records of ``call``, which leaves no collective of the group out and none twice."""
    seen()
    before = num_enqueued()
    call()
    rows = [row for row in collectives() if row.name.endswith(f"@{group.group_name}")]
    advance = num_enqueued() - before
    issued = [row.number for row in rows if row.kind == COLLECTIVE]
    assert issued == list(range(before + 1, before + 1 + advance)), (advance, rows)
    assert not open_now()
    return rows


def num_enqueued() -> int:
    """By the group's own number, less sends and receives."""
    return group_of(group).sequence()


def operations(rows: list[Seen]) -> list[str]:
    return [row.name.removesuffix(f"@{group.group_name}") for row in rows]


def check_the_state_says_whether_torch_has_them():
    dist.all_reduce(x())
    assert group_hooks.PATCHES.state == ("active" if HAS_HOOKS else "absent")


def check_groups_whose_collectives_are_all_recorded_get_none():
    needs_hooks()
    group_hooks.look()
    for _ in range(20):
        dist.all_reduce(x(), group=group)
    group_hooks.look()
    assert not group_hooks._wanted
    assert not group_hooks._hooked


def check_a_group_that_goes_on_without_records_gets_them():
    needs_hooks()
    recorded(lambda: None)
    hook(by_hand=False)
    assert [followed.name for followed in group_hooks._hooked] == [group.group_name]


def check_a_burst_of_them_is_not_enough():
    """Models are broadcast once."""
    needs_hooks()
    global group  # noqa: PLW0603
    kept, group = group, dist.new_group([0, 1])
    group_hooks.look()
    for _ in range(20):
        issue()
    group_hooks.look()
    group_hooks.look()
    assert id(group) not in group_hooks._wanted
    assert group_hooks._before[id(group)][-1] == 1
    dist.destroy_process_group(group)
    group = kept
    group_hooks.look()


def check_functional_collectives():
    needs_hooks()

    def call() -> None:
        functional.all_reduce(x(), "sum", group).add(1)
        functional.all_gather_tensor(x(), 0, group).add(1)
        functional.reduce_scatter_tensor(x(), "sum", 0, group).add(1)
        functional.all_to_all_single(x(), None, None, group).add(1)
        functional.broadcast(x(), 0, group).add(1)

    rows = recorded(call)
    names = operations(rows)
    assert names[0] == "all_reduce"
    assert names[1].startswith("all_gather_into_tensor"), names
    assert names[2].startswith("reduce_scatter_tensor"), names
    assert names[3:] == ["all_to_all_single", "broadcast"]
    assert [row.value for row in rows] == [ONE, 2 * ONE, ONE, ONE, ONE]
    assert not any(row.is_blocking or row.has_failed for row in rows)
    assert all(row.end_ns > row.begin_ns for row in rows)


def check_dtensor():
    needs_hooks()
    mesh = DeviceMesh.from_group(group, "cpu")

    def call() -> None:
        sharded = DTensor.from_local(torch.ones(2, 4), mesh, [Shard(0)], run_check=False)
        assert sharded.redistribute(mesh, [Replicate()]).to_local().shape == (4, 4)
        partial = DTensor.from_local(torch.ones(2, 4), mesh, [Partial()], run_check=False)
        assert partial.full_tensor().sum().item() == 16
        assert sharded.sum().full_tensor().item() == 16

    names = operations(recorded(call))
    assert len(names) == 3
    assert names[1:] == ["all_reduce", "all_reduce"]


def check_a_compiled_graph():
    needs_hooks()
    torch._dynamo.reset()

    def backend(graph_module, _inputs):
        graphs.append(graph_module.code)
        return graph_module.forward

    @torch.compile(fullgraph=True, backend=backend)
    def reduced(inputs: torch.Tensor) -> torch.Tensor:
        inputs = functional.all_reduce(inputs * 2, "sum", group)
        dist.all_reduce(inputs, group=group)
        return inputs + 1

    assert reduced(x()).mean().item() == 9
    torch._dynamo.config.error_on_recompile = True
    names = operations(recorded(lambda: [reduced(x()) for _ in range(3)]))
    torch._dynamo.config.error_on_recompile = False
    assert names == ["all_reduce"] * 6
    (code,) = graphs
    assert "dfx" not in code


def check_what_comes_through_the_class_is_recorded_once():
    needs_hooks()

    def call() -> None:
        issue()
        dist.all_reduce(x(), group=group)
        issue()
        dist.all_reduce(x(), group=group, async_op=True).wait()

    rows = recorded(call)
    assert [row.is_blocking for row in rows[:3]] == [False, True, False]
    assert [row.kind for row in rows] == [COLLECTIVE] * 4 + [COLLECTIVE_WAIT]


def check_sends_and_receives_have_no_number():
    needs_hooks()

    def call() -> None:
        op, peer = (torch.ops.c10d.send, 1) if RANK == 0 else (torch.ops.c10d.recv_, 0)
        op([x()], group.boxed(), peer, 0).wait()
        issue()

    before = num_enqueued()
    seen()
    call()
    rows = collectives()
    assert operations(rows) == ["send" if RANK == 0 else "recv", "all_reduce"]
    assert rows[0].number == -1
    assert rows[0].value == ONE
    assert rows[1].number == num_enqueued() == before + 1
    dist.barrier()


def check_ddp_is_recorded_by_its_reducer_alone():
    needs_hooks()
    replicas = [DistributedDataParallel(nn.Linear(4, 4), process_group=group)]

    def step() -> None:
        replicas[0](torch.ones(2, 4)).sum().backward()

    for _ in range(3):  # finds the parameter whose gradient comes last
        step()
    rows = recorded(step)
    assert operations(rows) == ["ddp_gradients"]
    replicas.clear()
    gc.collect()
    assert operations(recorded(issue)) == ["all_reduce"]


def check_one_that_raises():
    needs_hooks()
    seen()
    try:
        torch.ops._c10d_functional.broadcast(x(), 7, group.group_name)
    except RuntimeError as error:
        assert "dfx" not in str(error)  # noqa: PT017
    else:
        raise AssertionError("there is no rank 7")
    issue()
    rows = collectives()
    assert [row.has_failed for row in rows] == [True, False], rows
    assert rows[0].number == -1
    assert not open_now()


def check_nobody_touches_the_hooks_while_another_thread_is_inside_torch():
    needs_hooks()
    world = dist.group.WORLD
    assert group_hooks._is_quiet()
    threads = [
        threading.Thread(target=dist.barrier, kwargs={"group": world}) for _ in range(RANK == 0)
    ]
    for thread in threads:
        thread.start()
    if RANK == 0:
        end = time.monotonic() + HOOKED_SECONDS
        while group_hooks._is_quiet() and time.monotonic() < end:
            time.sleep(0.01)
        assert not group_hooks._is_quiet()
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        store.set("is_inside", "1")
    else:
        store.wait(["is_inside"])
        dist.barrier(group=world)
    for thread in threads:
        thread.join()
    assert group_hooks._is_quiet()
    dist.barrier()


def check_given_up_they_go():
    needs_hooks()
    assert num_hooks_in_torch() == 1
    group_hooks.PATCHES.suspend()
    seen()
    issue()
    assert collectives() == []
    until_all(lambda: num_hooks_in_torch() == 0, backward)
    group_hooks.PATCHES.resume("active")
    hook()
    assert num_hooks_in_torch() == 1


def check_they_go_with_the_guest_and_come_back():
    needs_hooks()
    gone: list[bool] = []
    hooks.withdraw(lambda: gone.append(True))
    seen()
    issue()
    assert collectives() == []
    assert not gone
    backward()
    assert gone
    assert num_hooks_in_torch() == 0
    issue()
    assert collectives() == []
    hooks.install()
    hook()
    assert operations(recorded(issue)) == ["all_reduce"]


def check_the_other_thread_only_switches_them_off():
    needs_hooks()
    thread = threading.Thread(target=hooks.remove)
    thread.start()
    thread.join()
    assert num_hooks_in_torch() == 1
    seen()
    issue()
    assert collectives() == []
    hooks.install()
    hook()
    assert num_hooks_in_torch() == 1  # in the place of the one that stayed
    assert operations(recorded(issue)) == ["all_reduce"]


def check_a_group_goes_with_its_hooks():
    needs_hooks()
    global group  # noqa: PLW0603
    kept, group = group, dist.new_group([0, 1])
    hook()
    assert num_hooks_in_torch() == 2
    reference = weakref.ref(group)
    dist.destroy_process_group(group)
    group = kept
    gc.collect()
    assert reference() is None
    assert num_hooks_in_torch() == 1


def check_the_guest_met_no_error():
    seen()
    assert num_guest_errors() == 0
    assert not open_now()
    assert torch_hooks.BACKWARD.is_active


if __name__ == "__main__":
    join()
    group = dist.new_group([0, 1])
    dist.barrier()
    report(checks_of("__main__"))
    dist.barrier()
