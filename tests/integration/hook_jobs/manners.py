"""One process that is a group of its own: what we replace, others replace too, and forks."""

from __future__ import annotations

import functools
import gc
import glob
import os
import sys
import threading
import tracemalloc

import torch
import torch.distributed as dist
from seen import (
    DEVICE,
    checks_of,
    collectives,
    join,
    leave,
    num_guest_errors,
    open_now,
    report,
    seen,
    stages,
)
from torch import nn

from dfx_agent.shim import patches, recorder
from dfx_agent.shim.torch import collectives as guest
from dfx_agent.shim.torch import modules
from dfx_agent.shim.torch.hooks import torch_hooks
from dfx_agent.wire import SegmentReader

ProcessGroup = dist.ProcessGroup
optimizers = sys.modules["torch.optim.optimizer"]
clip_grad = sys.modules["torch.nn.utils.clip_grad"]
GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def patched() -> dict[str, object]:
    """Every attribute that we may replace, as its owner holds it."""
    owners = [
        (ProcessGroup, list(guest._OPERATIONS)),
        (dist.Work, ["wait"]),
        (torch.autograd, ["backward"]),
        (clip_grad, ["_get_total_norm", "clip_grad_norm_"]),
        (torch.nn.utils, ["get_total_norm", "clip_grad_norm_"]),
        (torch.amp.GradScaler, ["_maybe_opt_step", "scale"]),
    ]
    return {
        f"{owner.__name__}.{name}": vars(owner).get(name)
        for owner, names in owners
        for name in names
    }


def _is_ours(function: object) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and "dfx_agent" in code.co_filename


def reduce() -> None:
    dist.all_reduce(torch.ones(1, device=DEVICE))


def names() -> list[str | None]:
    return [row.name for row in collectives()]


def check_everything_is_put_back():
    model = nn.Linear(2, 2).to(DEVICE)
    modules.follow([model])
    model(torch.ones(2, device=DEVICE)).sum().backward()
    assert model._forward_hooks
    with_hooks = patched()
    assert sum(map(_is_ours, with_hooks.values())) > 20
    torch_hooks.remove()
    without = patched()
    assert not any(map(_is_ours, without.values()))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert not any(getattr(optimizers, name) for name in GLOBAL_HOOKS)
    # the thread that follows event loops is the recorder's, and ends with it (test_leaving)
    assert {thread.name for thread in threading.enumerate()} <= {"MainThread", "dfx-loops"}
    torch_hooks.install()
    torch_hooks.install()
    assert patched().keys() == without.keys()
    torch_hooks.remove()
    again = patched()
    assert all(again[name] is without[name] for name in without)
    assert not any(getattr(optimizers, name) for name in GLOBAL_HOOKS)
    torch_hooks.install()


def check_states_say_what_is_there():
    states = {name: hook.state for name, hook in patches.registry.items()}
    assert states["collectives"] == states["backward"] == states["optimizer"] == "active"
    assert states["grad_norm"] == states["grad_scaler"] == "active"
    assert "failed" not in states.values()


def check_a_wrapper_of_another_tool_over_ours():
    for keeps_metadata in (True, False):
        calls: list[int] = []
        ours = ProcessGroup.__dict__["allreduce"]
        assert _is_ours(ours)

        def theirs(*args, ours=ours, calls=calls, **kwargs):
            calls.append(1)
            return ours(*args, **kwargs)

        ProcessGroup.allreduce = functools.wraps(ours)(theirs) if keeps_metadata else theirs
        for is_installed in (True, False, True, False, True):
            if is_installed:
                torch_hooks.install()
            else:
                torch_hooks.remove()
            collectives()
            reduce()
            assert names() == ["all_reduce@0"] * is_installed, (keeps_metadata, is_installed)
        assert len(calls) == 5
        torch_hooks.remove()
        ProcessGroup.allreduce = ours  # they leave; this one of ours is off for ever
        reduce()
        torch_hooks.install()
        collectives()
        reduce()
        assert names() == ["all_reduce@0"]


def check_a_wrapper_of_another_tool_under_ours():
    torch_hooks.remove()
    raw = vars(ProcessGroup)["allreduce"]
    original, calls = ProcessGroup.allreduce, []

    @functools.wraps(original)
    def theirs(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    ProcessGroup.allreduce = theirs
    torch_hooks.install()
    collectives()
    reduce()
    assert (names(), len(calls)) == (["all_reduce@0"], 1)
    ProcessGroup.allreduce = raw  # they leave first, and take ours away with theirs
    reduce()
    assert (names(), len(calls)) == ([], 1)
    torch_hooks.remove()
    assert vars(ProcessGroup)["allreduce"] is raw
    torch_hooks.install()
    reduce()
    assert names() == ["all_reduce@0"]


def check_workers_of_a_data_loader():
    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.full((1,), float(index))

    loader = torch.utils.data.DataLoader(Numbers(), num_workers=2, batch_size=2)
    for _ in range(2):
        assert sum(batch.sum().item() for batch in loader) == 28
        reduce()
    assert len(glob.glob(os.environ["DFX_DIR"] + "/*.seg")) == 1


def check_a_forked_child_that_trains_nothing():
    reduce()
    child = os.fork()
    if child == 0:
        torch.ones(3).sum()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(glob.glob(os.environ["DFX_DIR"] + "/*.seg")) == 1
    collectives()
    reduce()
    assert names() == ["all_reduce@0"]


def check_a_forked_child_that_trains_has_a_segment_of_its_own():
    path = recorder.current.path
    child = os.fork()
    if child == 0:
        is_well = False
        try:
            w = torch.ones(1, requires_grad=True)
            optimizer = torch.optim.SGD([w], 0.1)
            (w * 2).sum().backward()
            optimizer.step()
            is_well = recorder.current.path != path and "backward" in stages(seen())
        finally:
            os._exit(0 if is_well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (other,) = {*glob.glob(os.environ["DFX_DIR"] + "/*.seg")} - {path}
    os.unlink(other)


def check_a_thousand_groups():
    reduce()
    # kept: torch 2.4's gloo thread frees a last reference under the GIL that the group's end holds
    value = torch.ones(1, device=DEVICE)
    for i in range(1000):
        group = dist.new_group([0])
        dist.all_reduce(value, group=group)
        dist.destroy_process_group(group)
        del group
        if i % 100 == 99:
            gc.collect()
            collectives()
    gc.collect()
    living = guest.seen_groups()
    assert len(living) < 10, len(living)
    assert len(guest._groups) <= guest._MAX_GROUP_NAMES + 1
    reader = SegmentReader(recorder.current.path)
    _, name_bytes, names_dropped, _, _ = reader.live_words()
    assert names_dropped == 0
    assert name_bytes < 20_000
    last = dist.new_group([0])
    dist.all_reduce(value, group=last)
    assert [(row.name, row.number) for row in collectives()] == [("all_reduce@other", -1)]
    guest._groups.clear()
    guest._group_names.discard("0")  # as after an attach in the middle of a step
    reduce()
    assert names() == ["all_reduce@0"]


def check_100000_calls_leave_nothing_behind():
    value = torch.ones(1, device=DEVICE)
    group = dist.group.WORLD

    def run(count: int) -> None:
        for _ in range(count):
            dist.group.WORLD.allreduce([value]).wait()
            if recorder.current.num_written()[0] % 100_000 < 3:
                collectives()

    run(5000)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    run(5000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000, grown
    num_objects = len(gc.get_objects())
    for _ in range(10):
        run(10_000)
        seen()
    gc.collect()
    assert len(gc.get_objects()) - num_objects < 1000
    assert len(guest._pending) < 100
    del group


def check_no_tensor_stays_referenced():
    import weakref

    value = torch.ones(1000, device=DEVICE)
    ref = weakref.ref(value)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    del value, work
    gc.collect()
    assert ref() is None


def check_a_disabled_hook_stays_out():
    torch_hooks.remove()
    os.environ["DFX_DISABLE_HOOKS"] = "collectives, backward"
    torch_hooks.install()
    assert guest.PATCHES.state == patches.registry["backward"].state == "off"
    assert patches.registry["optimizer"].state == "active"
    collectives()
    reduce()
    assert names() == []
    torch_hooks.remove()
    del os.environ["DFX_DISABLE_HOOKS"]
    torch_hooks.install()
    reduce()
    assert names() == ["all_reduce@0"]


def check_the_guest_met_no_error():
    assert num_guest_errors() == 0
    assert not open_now()


if __name__ == "__main__":
    join()
    reduce()
    report(checks_of("__main__"))
    leave()
