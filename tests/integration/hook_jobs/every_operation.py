"""Three ranks issue every operation of torch.distributed; each rank checks its own records."""

from __future__ import annotations

import gc
import itertools
import threading
import traceback

import torch
import torch.distributed as dist
from seen import (
    DEVICE,
    RANK,
    checks_of,
    collectives,
    join,
    leave,
    num_guest_errors,
    open_now,
    report,
)

from dfx_agent.shim.torch.hooks import torch_hooks
from dfx_agent.wire.records import COLLECTIVE, COLLECTIVE_WAIT, NO_STEP, PEER

HOST_WAITS = DEVICE == "cpu"
NUMEL = 6
ONE = 4 * NUMEL  # bytes of one float32 tensor
BIG = 100 * 10**6

numbers = itertools.count(1)  # of the world's collectives, as every rank counts them


def tensor(times: int = 1) -> torch.Tensor:
    return torch.ones(NUMEL * times, device=DEVICE)


def tensors() -> list[torch.Tensor]:
    return [tensor() for _ in range(dist.get_world_size())]


def root_only(values: list[torch.Tensor]) -> list[torch.Tensor] | None:
    return values if RANK == 0 else None


def operations() -> dict[str, tuple]:
    """Name -> (call, bytes that this rank hands in or takes out)."""
    world = dist.get_world_size()
    everything, at_root = world * ONE, world * ONE if RANK == 0 else ONE
    return {
        "all_reduce": (lambda **k: dist.all_reduce(tensor(), **k), ONE),
        "all_reduce_coalesced": (
            lambda **k: dist.all_reduce_coalesced([tensor(), tensor(2)], **k),
            3 * ONE,
        ),
        "broadcast": (lambda **k: dist.broadcast(tensor(), 0, **k), ONE),
        "reduce": (lambda **k: dist.reduce(tensor(), 0, **k), ONE),
        "all_gather": (lambda **k: dist.all_gather(tensors(), tensor(), **k), everything),
        "all_gather_into_tensor": (
            lambda **k: dist.all_gather_into_tensor(tensor(world), tensor(), **k),
            everything,
        ),
        "gather": (lambda **k: dist.gather(tensor(), root_only(tensors()), **k), at_root),
        "scatter": (lambda **k: dist.scatter(tensor(), root_only(tensors()), **k), at_root),
        "reduce_scatter": (lambda **k: dist.reduce_scatter(tensor(), tensors(), **k), everything),
        "reduce_scatter_tensor": (
            lambda **k: dist.reduce_scatter_tensor(tensor(), tensor(world), **k),
            everything,
        ),
        "all_to_all": (lambda **k: dist.all_to_all(tensors(), tensors(), **k), everything),
        "all_to_all_single": (
            lambda **k: dist.all_to_all_single(tensor(world), tensor(world), **k),
            everything,
        ),
        "barrier": (dist.barrier, 0),
    }


def skip_numbers(count: int) -> None:
    for _ in range(count):
        next(numbers)


def issue(name: str, call, num_bytes: float, *, is_async: bool) -> None:
    """One operation, and exactly the records that it must leave."""
    collectives()
    try:
        work = call(async_op=is_async)
    except RuntimeError as error:  # gloo of older versions
        assert "support" in str(error), error  # noqa: PT017
        (failed,) = collectives()
        assert failed.has_failed
        assert failed.number == -1
        return
    if is_async:
        work.wait()
    rows, number = collectives(), next(numbers)
    if name == "reduce_scatter" and HOST_WAITS:  # gloo reduces once for each rank
        skip_numbers(dist.get_world_size() - 1)
    waits = isinstance(work, dist.Work) if is_async else False  # else a future of it
    expected = [COLLECTIVE, COLLECTIVE_WAIT] if waits else [COLLECTIVE]
    assert [row.kind for row in rows] == expected, rows
    assert {row.name for row in rows} == {f"{name}@0"}
    assert {row.number for row in rows} == {number}, (rows, number)
    assert rows[0].value == num_bytes
    host_waits = not is_async and (HOST_WAITS or name == "barrier")
    assert rows[0].is_blocking == host_waits, rows
    assert not any(row.has_failed for row in rows)


def check_every_operation():
    for name, (call, num_bytes) in operations().items():
        issue(name, call, num_bytes, is_async=False)


def check_every_operation_async():
    for name, (call, num_bytes) in operations().items():
        issue(name, call, num_bytes, is_async=True)


def check_point_to_point_leaves_the_numbers_of_the_others_alone():
    collectives()
    if RANK == 0:
        dist.send(tensor(), 1)
    elif RANK == 1:
        dist.recv(tensor(), 0)
        dist.isend(tensor(), 2).wait()
    else:
        dist.recv(tensor())
    rows = collectives()
    expected = {0: ["send@0"], 1: ["recv@0", "send@0", "send@0"], 2: ["recv@0"]}[RANK]
    assert [row.name for row in rows] == expected, rows
    # in place of a number the rank on the other side; nobody is named by a receive from anyone
    peers = {0: [PEER - 1], 1: [PEER - 0, PEER - 2, PEER - 2], 2: [NO_STEP]}[RANK]
    assert [row.number for row in rows] == peers, rows
    assert not any(row.has_failed for row in rows)
    assert rows[0].value == ONE
    assert rows[0].is_blocking == HOST_WAITS
    issue("all_reduce", *operations()["all_reduce"], is_async=False)


def check_a_batch_of_sends_and_receives():
    world = dist.get_world_size()
    operations = [
        dist.P2POp(dist.isend, tensor(), (RANK + 1) % world),
        dist.P2POp(dist.irecv, tensor(), (RANK - 1) % world),
    ]
    collectives()
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    rows = [row for row in collectives() if row.name != "coalesced@0"]
    issued = [row.name for row in rows if row.kind == COLLECTIVE]
    assert issued == ["send@0", "recv@0"]
    peers = [PEER - (RANK + 1) % world, PEER - (RANK - 1) % world]
    assert [row.number for row in rows if row.kind == COLLECTIVE] == peers
    if HOST_WAITS:
        waited = [row for row in rows if row.kind == COLLECTIVE_WAIT]
        assert [(row.name, row.number) for row in waited] == list(zip(issued, peers, strict=True))


def check_a_send_within_a_group_names_the_rank_of_the_job():
    group = dist.new_group([1, 2])
    collectives()
    if RANK == 1:
        dist.send(tensor(), group=group, group_dst=1)
    elif RANK == 2:
        dist.recv(tensor(), 1, group=group)
    expected = {1: [PEER - 2], 2: [PEER - 1]}.get(RANK, [])
    assert [row.number for row in collectives() if row.kind == COLLECTIVE] == expected


def check_a_monitored_barrier_has_no_number_and_costs_none():
    if not HOST_WAITS:
        return  # gloo alone has it
    collectives()
    dist.monitored_barrier()
    (row,) = collectives()
    assert (row.name, row.number, row.is_blocking) == ("monitored_barrier@0", -1, True)
    issue("barrier", *operations()["barrier"], is_async=False)


def check_a_work_that_nobody_waits_for():
    collectives()
    for _ in range(50):
        dist.all_reduce(tensor(), async_op=True)
        next(numbers)
        gc.collect()
    rows = collectives()
    assert [row.kind for row in rows] == [COLLECTIVE] * 50
    dist.barrier()
    assert [row.name for row in collectives()] == ["barrier@0"]
    assert next(numbers) == rows[-1].number + 1
    assert not open_now()


def check_objects():
    gathered: list = [None] * dist.get_world_size()
    collectives()
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * 1000})
    assert [item["rank"] for item in gathered] == list(range(dist.get_world_size()))
    rows = collectives()
    assert len(rows) == 2
    assert all(row.name.startswith("all_gather") for row in rows)
    assert [row.number for row in rows] == [next(numbers), next(numbers)]
    assert dist.get_world_size() * 1000 < rows[1].value < dist.get_world_size() * 1200


def check_objects_of_100_mb():
    objects = [b"x" * BIG if RANK == 0 else None]
    collectives()
    dist.broadcast_object_list(objects)
    assert len(objects[0]) == BIG
    sizes, payload = collectives()
    assert (sizes.name, payload.name) == ("broadcast@0", "broadcast@0")
    assert [sizes.number, payload.number] == [next(numbers), next(numbers)]
    assert BIG <= payload.value < BIG + 1000


def check_a_sub_group_counts_for_itself():
    group = dist.new_group([0, 1])
    collectives()
    if RANK < 2:
        for _ in range(3):
            dist.all_reduce(tensor(), group=group)
        rows = collectives()
        assert [row.number for row in rows] == [1, 2, 3]
        assert {row.name for row in rows} == {f"all_reduce@{group.group_name}"} != {"all_reduce@0"}
    else:
        dist.all_reduce(tensor(), group=group)
        assert collectives() == []
    issue("barrier", *operations()["barrier"], is_async=False)


def check_another_thread():
    group = dist.new_group()
    collectives()
    threads: list[int] = []

    def run():
        threads.append(threading.get_native_id())
        dist.all_reduce(tensor(), group=group)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    (row,) = collectives()
    assert row.thread == threads[0] != threading.get_native_id()
    assert row.number == 1


def raised(call) -> tuple:
    """(type, text, file and line of the first frame, function of the last) of what it raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        frames = traceback.extract_tb(error.__traceback__)
        first, second = frames[1], frames[2]
        place = first.filename, first.lineno, second.filename, second.lineno
        return type(error), str(error), place, error.__cause__, error.__context__
    raise AssertionError("it raised nothing")


def check_a_collective_that_raises():
    def wrong():
        dist.all_gather([tensor(2) for _ in tensors()], tensor())

    if not HOST_WAITS:
        return  # NCCL does not look at shapes
    collectives()
    with_hooks = raised(wrong)
    (row,) = collectives()
    assert (row.name, row.number, row.has_failed) == ("all_gather@0", -1, True)
    assert not open_now()
    torch_hooks.remove()
    without_hooks = raised(wrong)
    torch_hooks.install()
    assert with_hooks == without_hooks
    issue("barrier", *operations()["barrier"], is_async=False)


def check_the_guest_met_no_error():
    assert num_guest_errors() == 0
    assert not open_now()


if __name__ == "__main__":
    join()
    report(checks_of("__main__"))
    leave()
