"""Bytecodes that the guest executes for each event, counted: python -m bench.event_bytecodes

A count does not depend on the machine or its load, so CI can hold it (tests/unit/shim). It says
nothing about time: between two events a job empties the caches (bench/timed_in_place.py).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import dfx_agent.shim as dfx
from bench.hooked_calls import single_rank
from bench.toggled_guest import hook
from dfx_agent.commands.demo.model import TinyTransformer

_GUEST = "/dfx_agent/shim/", "/dfx_agent/wire/"
_WARM_UPS = 3
_NUM_STAGES = 600  # more than those in which the guest listens for models
_VOCABULARY, _CONTEXT = 20, 24


def counts() -> dict[str, int]:
    """By event, of a process that records nothing else."""
    os.environ |= {"DFX_LEDGER_EVERY_STEP": "1", "DFX_MAX_OVERHEAD": "0", "DFX_DISABLE_HOOKS": ""}
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        dfx.init(run="bench", role="trainer", rank=0, directory=folder)
        dfx.set_step(8)
        with single_rank():
            events = _events()
            for _ in range(_NUM_STAGES):
                events["span"]()
            found = {name: bytecodes(run) for name, run in events.items()}
        dfx.shutdown()
    return found


def bytecodes(run: Callable[[], object]) -> int:
    """Of the guest's own code in one call, after some that are not counted."""
    num_executed = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal num_executed
        if not any(part in frame.f_code.co_filename for part in _GUEST):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        num_executed += event == "opcode"
        return trace

    for _ in range(_WARM_UPS):
        run()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return num_executed


def _events() -> dict[str, Callable[[], object]]:
    model = TinyTransformer(_VOCABULARY, _CONTEXT)
    hook(root=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    ids, one = torch.zeros((4, 16), dtype=torch.int64), torch.ones(1)
    batch = {"sample_id": torch.arange(8), "response_mask": torch.ones(8, 6), "rewards": ids[0]}
    metrics = {f"actor/value_{number}": 0.5 for number in range(10)}
    model(ids).sum().backward()

    def span() -> None:
        with dfx.stage("rollout"):
            pass

    def backward() -> None:
        loss = one.clone().requires_grad_()
        loss.sum().backward()

    return {
        "span": span,
        "tokens": lambda: dfx.tokens("prompt", 7),
        "scalar": lambda: dfx.scalar("reward", 0.5),
        "ten scalars": lambda: dfx.scalars(metrics),
        "step": lambda: dfx.set_step(8),
        "ledger of three columns": lambda: dfx.ledger("rollout", batch),
        "repeated forward": lambda: _frozen(model, ids),
        "backward": backward,
        "optimizer step": optimizer.step,
        "gradient norm": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        "collective": lambda: dist.all_reduce(one),
    }


def _frozen(model: nn.Module, ids: torch.Tensor) -> None:
    with torch.no_grad():
        model(ids)


if __name__ == "__main__":
    print(json.dumps(counts()))
