"""Calls of torch that the guest hooks into, timed with the hook and without it, interleaved.

One process, a gloo group of one rank, tensors of one element: what the hook adds is then a good
part of the whole. Blocks of equal calls keep everything in the processor's caches; what the same
hooks take in a training, where nothing is, says bench/timed_in_place.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dfx_agent.shim as dfx
from bench.calls import Case, block_means_ns
from bench.estimates import difference_of_medians
from bench.rounds import SEED
from bench.toggled_guest import hook, unhook

CALLS_PER_BLOCK = 100
ALL_REDUCE, ASYNC, BARRIER = "all_reduce", "all_reduce, async, and its wait", "barrier"
BACKWARD, OPTIMIZER, FORWARD = "backward", "optimizer step", "forward of the root"
GRAD_NORM, DDP_GRADIENTS = "clip_grad_norm_", "last gradient of DDP"
PLAIN, SPANNED = ", without the guest", ", in an OpenTelemetry span"


@dataclass(frozen=True)
class HookedCall:
    """``before`` puts in what is measured; everything is taken out after each block."""

    name: str
    statement: str
    before: Callable[[], None]
    before_plain: Callable[[], None] = unhook

    def cases(self) -> list[Case]:
        spanned = f"with start('span'): {self.statement}"
        return [
            Case(self.name, self.statement, self.before, unhook),
            Case(self.name + PLAIN, self.statement, self.before_plain, unhook),
            Case(self.name + SPANNED, spanned, self.before_plain, unhook),
        ]


@dataclass(frozen=True)
class Added:
    """Mean ns per call of each block: with the hook, without, without but in a span."""

    hooked: list[float]
    plain: list[float]
    spanned: list[float]

    @property
    def ns(self) -> float:
        return difference_of_medians(self.hooked, self.plain)


def added_by_hooks(start_span: Any, *, quick: bool) -> dict[str, Added]:
    """By name of the call. The guest must be recording, torch.distributed not be in use."""
    with single_rank():
        dfx.set_step(7)  # a job that counts its steps: the hook begins none
        calls, names = _calls()
        cases = [case for call in calls for case in call.cases()]
        names["start"] = start_span
        means = block_means_ns(cases, names, *((3, 5) if quick else (40, CALLS_PER_BLOCK)))
        hook()
    return {
        call.name: Added(*(means[call.name + what] for what in ("", PLAIN, SPANNED)))
        for call in calls
    }


@contextmanager
def single_rank() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _calls() -> tuple[list[HookedCall], dict[str, Any]]:
    torch.manual_seed(SEED)
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    names = {
        "dist": dist,
        "tensor": torch.zeros(1),
        "row": torch.zeros(1, 1),
        "loss": weight * 1.0,
        "optimizer": torch.optim.SGD([weight], lr=0.0),
        "clip": nn.utils.clip_grad_norm_,
        "weight": weight,
        "root": nn.Linear(1, 1),
        "replica": DistributedDataParallel(nn.Linear(1, 1)),
    }
    calls = [
        HookedCall(ALL_REDUCE, "dist.all_reduce(tensor)", _only("collectives")),
        HookedCall(ASYNC, "dist.all_reduce(tensor, async_op=True).wait()", _only("collectives")),
        HookedCall(BARRIER, "dist.barrier()", _only("collectives")),
        HookedCall(BACKWARD, "loss.backward(retain_graph=True)", _only("backward")),
        HookedCall(OPTIMIZER, "optimizer.step()", _only("optimizer")),
        HookedCall(GRAD_NORM, "clip([weight], 1.0)", _only("grad_norm")),
        HookedCall(FORWARD, "root(row)", _only("forward", root=names["root"])),
        _ddp_call(names["replica"]),
    ]
    return calls, names


def _only(name: str, root: nn.Module | None = None) -> Callable[[], None]:
    return lambda: hook({name}, root)


def _ddp_call(replica: nn.Module) -> HookedCall:
    """Beside a backward that is hooked too; in the first one DDP's hook finds its parameter."""

    def before() -> None:
        hook({"backward", "ddp"}, replica)
        replica(torch.zeros(1, 1)).backward()

    return HookedCall(DDP_GRADIENTS, "replica(row).backward()", before, _only("backward"))
