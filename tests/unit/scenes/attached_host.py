"""A process of ours that a guest is brought into, and what a test asks it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dfx_agent
from dfx_agent.attach.bring import AttachAnswer, Order
from dfx_agent.attach.processes import ProcessTable
from dfx_agent.commands.attach.attachment import AttachedGuest
from dfx_agent.wire import SegmentReader

# Executes what it is told, in its main thread, and answers the value of the last expression.
HOST = """
import ast, json, sys
globals_ = {"__name__": "__main__"}
answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    *body, last = ast.parse(json.loads(line)).body
    if not isinstance(last, ast.Expr):
        body, last = [*body, last], ast.parse("None").body[0]
    exec(compile(ast.Module(body, []), "host", "exec"), globals_)
    value = eval(compile(ast.Expression(last.value), "host", "eval"), globals_)
    print(json.dumps(value, default=repr), file=answers, flush=True)
"""

TRAINING = """
import gc, threading, sys, torch
import torch.distributed as dist
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def backward():
    model(torch.randn(2, 4)).sum().backward()
def step():
    backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
optim, clip = sys.modules["torch.optim.optimizer"], sys.modules["torch.nn.utils.clip_grad"]
def state():
    attributes = {**vars(dist.ProcessGroup), "wait": vars(dist.Work)["wait"],
        "backward": torch.autograd.backward,
        "norm": getattr(clip, "_get_total_norm", clip.clip_grad_norm_)}
    return {
        "attributes": {name: id(value) for name, value in attributes.items()},
        "meta_path": [id(finder) for finder in sys.meta_path],
        "hooks": [len(optim._global_optimizer_pre_hooks), len(optim._global_optimizer_post_hooks),
            len(model._forward_hooks), len(model._forward_pre_hooks)],
        "modules": [name for name in sys.modules if "dfx" in name],
        "threads": [thread.name for thread in threading.enumerate()],
        "main": [name for name in vars(sys.modules["__main__"]) if "dfx" in name],
    }
step()
before = state()
"""


class Host:
    """A process of ours that does what a test tells it."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self.directory = directory
        self.popen = subprocess.Popen(
            [sys.executable, "-c", HOST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def do(self, code: str) -> Any:
        assert self.popen.stdin
        assert self.popen.stdout
        self.popen.stdin.write(json.dumps(code) + "\n")
        self.popen.stdin.flush()
        line = self.popen.stdout.readline()
        assert line, "the process died"
        return json.loads(line)

    def attach(
        self,
        *,
        grace_seconds: float = 300.0,
        directory: Path | None = None,
        max_overhead_ratio: float | None = None,
        **known: Any,
    ) -> AttachAnswer:
        """What an injected thread does, without the injection."""
        order = self.order(grace_seconds, directory, known, max_overhead_ratio)
        self.do(
            "import threading; globals()['thread'] = threading.Thread("
            f"target=exec, args=({order.source!r}, {{'__name__': 'text'}})); thread.start()"
        )
        answer = order.answer(30.0)
        assert answer is not None
        self.do("thread.join()")
        return answer

    def order(
        self,
        grace_seconds: float,
        directory: Path | None,
        known: Any,
        max_overhead_ratio: float | None = None,
    ) -> Order:
        folder = str(directory or self.directory)
        return Order(
            folder,
            folder,
            version=known.pop("version", dfx_agent.__version__),
            identity_fields=known,
            grace_seconds=grace_seconds,
            max_overhead_ratio=max_overhead_ratio,
        )

    def ask_to_leave(self, answer: AttachAnswer) -> None:
        Path(answer.segment).with_suffix(".detach").touch()

    def has_left(self, answer: AttachAnswer) -> bool:
        return not Path(answer.segment).with_suffix(".attached").exists()

    def train_until(self, look: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < deadline
            self.do("step()")
            time.sleep(0.02)


def until(look: Callable[[], Any], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def segment_state(answer: AttachAnswer) -> int:
    segment = SegmentReader(answer.segment)
    state = segment.live_words()[0]
    segment.close()
    return state


def hooked(trainer: Host) -> None:
    """Train until the guest has found the model."""
    trainer.train_until(lambda: trainer.do("len(model._forward_hooks)") == 1)


def guest_of(host: Host, answer: AttachAnswer) -> AttachedGuest:
    """As an agent knows it."""
    process = ProcessTable().get(host.popen.pid)
    assert process
    return AttachedGuest(process, answer.segment.removesuffix(".seg"), {})
