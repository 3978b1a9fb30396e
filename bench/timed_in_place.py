"""The guest's own time inside a real training, hook by hook, taken where it is spent.

Between two collectives a job runs through all its memory, so a hook finds nothing of its code or
data in the caches and takes several times what it takes in a loop of equal calls. Each wrapper of
the guest is timed around, less the call that it wraps; each hook that torch calls is timed whole.
What the two clocks take is left in.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.torch.hooks import torch_hooks

SETTLE_SECONDS = 2.5  # until the guest has found the models

_GUEST = "dfx_agent."

_clock = time.perf_counter_ns


class GuestClock:
    """Nanoseconds and number of calls so far; start it before the guest installs its hooks."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self.num_calls = 0

    def start(self) -> None:
        optimizer = sys.modules["torch.optim.optimizer"]
        self._time_wrappers()
        for owner, name in (
            (optimizer, "register_optimizer_step_pre_hook"),
            (optimizer, "register_optimizer_step_post_hook"),
            (nn.Module, "register_forward_pre_hook"),
            (nn.Module, "register_forward_hook"),
            (torch.Tensor, "register_post_accumulate_grad_hook"),
        ):
            setattr(owner, name, self._registering_timed(getattr(owner, name)))

    def read(self) -> tuple[int, int]:
        return self.spent_ns, self.num_calls

    def _time_wrappers(self) -> None:
        replace = PatchSet.replace

        def replace_timed(
            patches: PatchSet, owner: Any, name: str, make: Callable[..., Any]
        ) -> None:
            def make_timed(original: Any, *rest: Any) -> Any:
                return self._around(make(self._inside(original), *rest))

            replace(patches, owner, name, make_timed)

        PatchSet.replace = replace_timed  # type: ignore[method-assign, assignment]

    def _around(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapper)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = _clock()
            try:
                return wrapper(*args, **kwargs)
            finally:
                self.spent_ns += _clock() - begin
                self.num_calls += 1

        return timed

    def _inside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Hooks of ours that it calls add their own time before its whole time is taken off."""

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = _clock()
            try:
                return original(*args, **kwargs)
            finally:
                self.spent_ns -= _clock() - begin

        return timed

    def _registering_timed(self, register: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(register)
        def registering(*args: Any, **kwargs: Any) -> Any:
            *first, hook = args
            if str(getattr(hook, "__module__", "")).startswith(_GUEST):
                hook = self._around(hook)
            return register(*first, hook, **kwargs)

        return registering


def watch_seconds() -> float:
    """Processor time so far of the guest's own thread in this process; 0.0 where there is none."""
    identifier = torch_hooks.watch.thread.ident if torch_hooks.watch else None
    return time.clock_gettime(time.pthread_getcpuclockid(identifier)) if identifier else 0.0
