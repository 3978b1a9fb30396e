"""The guest's hooks taken out of a training process and put back, all of them or some.

Out means that every patched attribute is the one that torch had: nothing of ours is called. The
watch thread stays and finds nothing to do without a recorder.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dfx_agent.shim import patches, recorder
from dfx_agent.shim.torch import collectives, ddp, model_work, modules, overhead, step_hooks

# after a switch, not timed: in its first steps a guest searches for the models of each stage, with
# a hook on all modules, and for the last parameter of DDP, with one on each; a job does that once
WARM_UP_STEPS = 4


class ToggledGuest:
    """Of a process that has called ``init``. ``root`` is the module whose forward is timed."""

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._writer = recorder.current

    def set_arm(self, arm: str) -> None:
        """``arm``: of bench/rounds.py, or "no NAME", all hooks but this one."""
        self.switch(is_on=arm not in ("off", "again"), is_reduced=arm == "reduced")
        if arm.startswith("no "):
            patches.registry[arm.removeprefix("no ")].restore()

    def switch(self, *, is_on: bool, is_reduced: bool = False) -> None:
        """Run WARM_UP_STEPS next, without timing them.

        ``is_reduced``: without what the default budget reduces where steps are too short.
        """
        unhook()
        recorder.current = self._writer if is_on else None
        if is_on:
            hook(root=self._root)
        if self._writer is not None:
            self._writer.stride = overhead.RARELY if is_reduced else 1
            self._writer.work_stride = self._writer.stride


def unhook() -> None:
    patches.restore_all()


def hook(names: Collection[str] = (), root: nn.Module | None = None) -> None:
    """Put in the hooks of these names, all of them if there are none."""
    collectives.install()
    news, step_hooks.seen.news = step_hooks.seen.news, threading.Event()
    step_hooks.install()  # would have models looked for, which a job does a few times in all
    step_hooks.seen.news = news
    if root is not None:
        modules._time_forward(root)
        modules._count_work(root)
        if model_work.state.listener is not None:
            model_work.state.listener.leave()  # it looks at the first stages of a job
        if isinstance(root, DistributedDataParallel):
            ddp.watch(root)
    for name, patch_set in list(patches.registry.items()):
        if names and name not in names:
            patch_set.restore()
