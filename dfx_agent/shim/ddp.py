"""DistributedDataParallel: when this rank's gradients were ready, and when everybody's were.

DDP issues its all-reduces from C++ and waits for them at the end of backward, out of sight of any
Python hook. But a hook on the one parameter whose gradient comes last says when this rank arrived
(3.6 us a step), and the end of backward says when the last collective was over: together they are
one blocking collective, "ddp_gradients". Which parameter is last is learned in one backward with
a hook on each.
"""

from __future__ import annotations

import weakref
from typing import Any

from dfx_agent.shim import collectives, recorder
from dfx_agent.shim.patches import PatchSet
from dfx_agent.wire.records import BLOCKING, COLLECTIVE, FAILED, NO_STEP

PATCHES = PatchSet("ddp")

_OPERATION = "ddp_gradients"


class _Replica:
    """One DDP module: its group and the hooks on its parameters."""

    def __init__(self, module: Any) -> None:
        self.ref = weakref.ref(module)
        self.group = collectives.group_of(module.process_group)
        self.num_bytes = 0.0
        self.before = NO_STEP
        self._last: Any = None
        self._begun: Any = None
        self._handles: list[Any] = []
        self._is_learning = True
        for parameter in module.module.parameters():
            if parameter.requires_grad:
                self.num_bytes += parameter.nbytes
                hook = parameter.register_post_accumulate_grad_hook(self._on_ready)
                self._handles.append(hook)

    def begin(self) -> None:
        self.before = self.group.sequence()

    def end(self, flags: int) -> None:
        """Backward is over: everybody's gradients have arrived."""
        begun, self._begun = self._begun, None
        if self._is_learning and self._last is not None:
            self._keep_last()
        if begun is not None:
            sequence = self.group.sequence()
            if sequence == self.before and sequence != NO_STEP:
                begun[0].leave(begun[4])  # no_sync: nothing was reduced
            else:
                collectives.end((*begun[:2], sequence, *begun[3:]), flags)

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _on_ready(self, parameter: Any) -> None:
        try:
            if not PATCHES.is_active:
                return
            if self._is_learning:
                self._last = weakref.ref(parameter)
                return
            if self._begun is not None:  # accumulated twice in one backward: the last one counts
                self._begun[0].leave(self._begun[4])
            sequence = self.group.sequence()
            expected = NO_STEP if sequence == NO_STEP else sequence + 1
            self._begun = collectives.begin(self.group, _OPERATION, self.num_bytes, expected)
        except Exception:  # noqa: BLE001 (never into the job)
            if recorder.current is not None:
                recorder.current.count_error()

    def _keep_last(self) -> None:
        """The hook stays on the parameter that came last."""
        self.remove()
        parameter = self._last() if self._last else None
        if parameter is not None:
            self._is_learning = False
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._on_ready))


_replicas: list[_Replica] = []


def watch(module: Any) -> None:
    """Follow one DistributedDataParallel module; known ones are passed over."""
    if any(replica.ref() is module for replica in _replicas):
        return
    _replicas[:] = [replica for replica in _replicas if replica.ref() is not None]

    def change(patches: PatchSet) -> None:
        replica = _Replica(module)
        _replicas.append(replica)
        patches.on_restore(replica.remove)

    if PATCHES.is_active:
        change(PATCHES)
    else:
        PATCHES.install(change)


def before_backward() -> None:
    for replica in _replicas:
        replica.begin()


def after_backward(*, has_failed: bool) -> None:
    flags = COLLECTIVE | BLOCKING | FAILED if has_failed else COLLECTIVE | BLOCKING
    for replica in _replicas:
        replica.end(flags)
