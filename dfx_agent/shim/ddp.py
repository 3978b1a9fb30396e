"""DistributedDataParallel: when this rank's gradients were ready, and when everybody's were.

DDP issues its all-reduces from C++ and waits for them at the end of backward, out of sight of any
Python hook. But a hook on the one parameter whose gradient comes last says when this rank arrived
(3.6 us a step), and the end of backward says when the last collective was over: together they are
one blocking collective, "ddp_gradients". Which parameter is last is learned in one backward with
a hook on each, and learned again, in addition, when none of those came (branches).
"""

from __future__ import annotations

import weakref
from typing import Any

from dfx_agent.shim import collectives, recorder
from dfx_agent.shim.patches import PatchSet
from dfx_agent.wire.records import BLOCKING, COLLECTIVE, FAILED, NO_STEP

PATCHES = PatchSet("ddp")

_OPERATION = "ddp_gradients"
_MAX_LESSONS = 8  # hooks on all parameters cost 3.6 us each


class _Replica:
    """One DDP module: its group and the hooks on its parameters."""

    def __init__(self, module: Any) -> None:
        self.ref = weakref.ref(module)
        self.group = collectives.group_of(module.process_group)
        self._parameters = [weakref.ref(p) for p in module.module.parameters() if p.requires_grad]
        living = [parameter for ref in self._parameters if (parameter := ref()) is not None]
        self._num_bytes = sum(parameter.nbytes for parameter in living)
        # the host waits for gloo; a device's stream waits for NCCL, and the host goes on
        self.kind = COLLECTIVE | BLOCKING if all(p.is_cpu for p in living) else COLLECTIVE
        self._first: Any = None
        self._last: Any = None
        self._lasts: list[Any] = []
        self._is_over = False
        self._is_in_backward = False
        self._takes_part = False
        self._begun: Any = None
        self._handles: list[Any] = []
        self._num_lessons = 0
        self._is_learning = False

    def begin(self) -> None:
        """Backward begins, in the thread that trains: hooks may be put in now."""
        self._is_in_backward, self._takes_part = True, False
        if not self._handles and self._num_lessons < _MAX_LESSONS:
            self._num_lessons += 1
            self._is_learning, self._first, self._last = True, None, None
            for ref in self._parameters:
                self._hook(ref(), self._on_ready)
        if self._is_over:  # taken back meanwhile
            self.forget()

    def end(self, *, has_failed: bool) -> Any:
        """Backward is over: what has begun, None where nothing was reduced or nothing was seen."""
        self._is_in_backward = False
        begun, self._begun = self._begun, None
        sequence = self.group.sequence()
        if self._is_learning and self._last is not None and not has_failed:
            self._is_learning = False
            self.remove()
            self._lasts.append(self._last)
            for last in self._lasts:
                self._hook(last(), self._on_ready)
            self._hook(self._first(), self._on_first)
        elif begun is None and self._takes_part and self._num_lessons < _MAX_LESSONS:
            self.remove()  # over without a parameter that came last before: learn again
        elif begun is not None and sequence < begun[2]:  # no_sync
            collectives.abandon(begun)
            return None
        if self._is_over:
            self.forget()
        return None if begun is None else (*begun[:2], sequence, *begun[3:])

    def forget(self) -> None:
        """No hook and nothing open is left, whatever the thread that trains does meanwhile."""
        self._is_over = True
        self._is_in_backward = False
        self.remove()
        begun, self._begun = self._begun, None
        if begun is not None:
            collectives.abandon(begun)

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _hook(self, parameter: Any, call: Any) -> None:
        if parameter is not None:
            self._handles.append(parameter.register_post_accumulate_grad_hook(call))

    def _on_first(self, _parameter: Any) -> None:
        self._takes_part = True

    def _on_ready(self, parameter: Any) -> None:
        try:
            if not (self._is_in_backward and PATCHES.switch.is_on):
                return
            if self._is_learning:
                self._last = weakref.ref(parameter)
                self._first = self._first or self._last
                return
            if self._begun is not None:  # another one that was last once: the latest counts
                collectives.abandon(self._begun)
            sequence = self.group.sequence()
            expected = NO_STEP if sequence == NO_STEP else sequence + 1
            self._begun = collectives.begin(self.group, _OPERATION, self._num_bytes, expected)
            if self._is_over:
                self.forget()
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()


replicas: list[_Replica] = []
known: weakref.WeakSet[Any] = weakref.WeakSet()  # also while no hook is on them


def watch(module: Any) -> None:
    """Follow one DistributedDataParallel module; those that are followed are passed over."""
    if module is None or any(replica.ref() is module for replica in replicas):
        return
    known.add(module)
    replicas[:] = [replica for replica in replicas if replica.ref() is not None]

    def change(patches: PatchSet) -> None:
        replica = _Replica(module)
        replicas.append(replica)
        patches.on_restore(lambda: _forget(replica))

    if PATCHES.is_active:
        change(PATCHES)
    else:
        PATCHES.install(change)


def after_backward(*, has_failed: bool) -> None:
    """Of several modules that were reduced together in one group, the last one tells."""
    latest: dict[int, tuple[_Replica, Any]] = {}
    for replica in replicas:
        begun = replica.end(has_failed=has_failed)
        if begun is not None:
            _, other = latest.get(id(replica.group), (replica, None))
            if other is not None:
                begun, other = (begun, other) if begun[3] > other[3] else (other, begun)
                collectives.abandon(other)
            latest[id(replica.group)] = replica, begun
    for replica, begun in latest.values():
        collectives.end(begun, replica.kind | FAILED if has_failed else replica.kind)


def _forget(replica: _Replica) -> None:
    replica.forget()
    if replica in replicas:
        replicas.remove(replica)
