"""DistributedDataParallel: records when this rank's gradients and those of all ranks were ready.

DDP issues its all-reduces from C++ and waits for them at the end of backward, which no Python hook
sees. A hook on the parameter whose gradient is computed last shows when this rank has arrived (3.6
us per step). The end of backward shows when the last all-reduce was over. Together they are one
blocking collective, "ddp_gradients".

Which parameter is last is learned in one backward with a hook on every parameter. It is learned
again, in addition, if none of the known ones had a gradient (branches) although the group's number
increased. That number is read before a backward only if the model may have branches.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from dfx_agent.shim import meter, recorder
from dfx_agent.shim.meter import clock
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.torch import collectives
from dfx_agent.wire.records import BLOCKING, COLLECTIVE, DDP_GRADIENTS, FAILED, NO_STEP

PATCHES = PatchSet("ddp")

_MAX_LESSONS = 8  # hooks on all parameters cost 3.6 us each

_now = time.monotonic_ns


class _Replica:
    """One DDP module: its group and the hooks on its parameters."""

    def __init__(self, module: Any, switch: Switch) -> None:
        self.ref = weakref.ref(module)
        self.group = collectives.group_of(module.process_group)
        self._parameters = [weakref.ref(p) for p in module.module.parameters() if p.requires_grad]
        living = [parameter for ref in self._parameters if (parameter := ref()) is not None]
        self._num_bytes = float(sum(parameter.nbytes for parameter in living))
        # with gloo the host waits; with NCCL only the device's stream does
        self._kind = COLLECTIVE | BLOCKING if all(p.is_cpu for p in living) else COLLECTIVE
        self._switch = switch
        self._on_last = self._make_on_last()
        self._last: Any = None
        self._lasts: list[Any] = []
        self._is_over = False
        self._is_in_backward = False
        self.begun: collectives.Begun | None = None
        self._handles: list[Any] = []
        self._num_lessons = 0
        self._is_learning = False
        self._may_branch = getattr(module, "find_unused_parameters", True)
        self._before = NO_STEP  # the group's number at the begin of backward, if there are branches
        self.has_missed = False

    def begin(self) -> None:
        """Prepare for a backward, in the training thread, which may install hooks now."""
        self._is_in_backward = True
        if self._may_branch:
            self._before = self.group.sequence()
        if not self._handles and self._num_lessons < _MAX_LESSONS:
            self._hook_all()
        if self._is_over:  # removed meanwhile
            self.forget()

    def end(self, *, has_failed: bool) -> bool:
        """Finish a backward; return whether a collective was recorded."""
        self._is_in_backward, is_recorded = False, False
        begun, self.begun = self.begun, None
        if self._is_learning and not has_failed:
            begun = self._learn(begun)
        elif begun is None:
            self.has_missed = NO_STEP < self._before < self.group.sequence()
            self._may_branch = True
        if begun is not None:
            writer, name_id, expected, t0, slot, span, parent, thread, size = begun
            sequence = self.group.sequence()
            is_recorded = sequence >= expected and writer is recorder.current
            if is_recorded:
                kind = self._kind | FAILED if has_failed else self._kind
                writer.end_span(
                    slot, t0, _now(), size, sequence, span, parent, thread, kind, name_id
                )
            else:  # no_sync
                collectives.abandon(begun)
        if self._is_over:
            self.forget()
        return is_recorded

    def learn_again(self) -> None:
        """Learn in the next backward, in addition to the known parameters."""
        self.has_missed = False
        if self._num_lessons < _MAX_LESSONS:
            self.remove()

    def forget(self) -> None:
        """Remove all hooks and open entries, whatever the training thread does meanwhile."""
        self._is_over = True
        self._is_in_backward = False
        self.remove()
        begun, self.begun = self.begun, None
        if begun is not None:
            collectives.abandon(begun)

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _hook(self, parameter: Any, call: Any) -> None:
        if parameter is not None:
            self._handles.append(parameter.register_post_accumulate_grad_hook(call))

    def _hook_all(self) -> None:
        self._num_lessons += 1
        self._is_learning, self._last = True, None
        lasts = {id(ref()) for ref in self._lasts}
        for ref in self._parameters:
            self._hook(ref(), self._on_last if id(ref()) in lasts else self._on_ready)

    def _hook_lasts(self) -> None:
        self._is_learning = False
        self.remove()
        for ref in self._lasts:
            self._hook(ref(), self._on_last)

    def _on_ready(self, parameter: Any) -> None:
        if self._is_in_backward and self._switch.is_on:
            self._last = weakref.ref(parameter)

    def _learn(self, begun: collectives.Begun | None) -> collectives.Begun | None:
        """Process a backward with hooks on all parameters; return what a known one began."""
        if self._last is not None:
            self._lasts.append(self._last)
            self._hook_lasts()
            if begun is not None:
                collectives.abandon(begun)
            return None
        if begun is not None:  # of this module, but not of the branch to be learned
            self._num_lessons += 1
            if self._num_lessons >= _MAX_LESSONS:
                self._hook_lasts()
        return begun

    def _make_on_last(self) -> Callable[[Any], None]:
        """Return the hook. It uses few functions, because they have left the CPU caches."""
        enter, count_call = collectives.entering(COLLECTIVE), collectives.count_call
        group, switch, num_bytes = self.group, self._switch, self._num_bytes
        writer, name_id = None, 0

        def on_last(_parameter: Any) -> None:
            nonlocal writer, name_id
            if not (self._is_in_backward and switch.is_on):
                return
            begin = meter.is_open and clock()
            try:
                if self.begun is not None:  # of another branch: the latest one counts
                    collectives.abandon(self.begun)
                self._last = None
                sequence = group.sequence()
                expected = NO_STEP if sequence == NO_STEP else sequence + 1
                if writer is not recorder.current:
                    writer = recorder.current
                    name_id = group.id_of(writer, DDP_GRADIENTS) if writer else 0
                self.begun = enter((writer, name_id, expected), num_bytes)
                count_call()
                if self._is_over:
                    self.forget()
                if begin:
                    meter.spent_ns += clock() - begin
            except Exception:  # noqa: BLE001 (never into the job)
                recorder.count_error()

        return on_last


replicas: list[_Replica] = []
followed: weakref.WeakSet[Any] = weakref.WeakSet()  # includes modules without hooks at the moment


def watch(module: Any) -> None:
    """Follow one DistributedDataParallel module, unless it is followed already."""
    if module is None or any(replica.ref() is module for replica in replicas):
        return
    followed.add(module)
    replicas[:] = [replica for replica in replicas if replica.ref() is not None]

    def change(patches: PatchSet) -> None:
        replica = _Replica(module, patches.switch)
        replicas.append(replica)
        patches.on_restore(lambda: _forget(replica))

    if PATCHES.is_active:
        change(PATCHES)
    else:
        PATCHES.install(change)


def after_backward(*, has_failed: bool) -> None:
    """Record the collective. If modules share a group, the last one of them stands for all."""
    if len(replicas) > 1:
        _abandon_all_but_latest()
    recorded = []
    for replica in replicas:
        if replica.end(has_failed=has_failed):
            recorded.append(replica.group)  # noqa: PERF401 (a comprehension is a function more)
    for replica in replicas:
        if replica.has_missed and replica.group not in recorded:
            replica.learn_again()


def _abandon_all_but_latest() -> None:
    begun = [(replica.begun, replica) for replica in replicas if replica.begun is not None]
    latest: dict[int, _Replica] = {}
    for entry, replica in sorted(begun, key=lambda pair: pair[0][3], reverse=True):
        if latest.setdefault(id(replica.group), replica) is not replica:
            collectives.abandon(entry)
            replica.begun = None


def _forget(replica: _Replica) -> None:
    replica.forget()
    if replica in replicas:
        replicas.remove(replica)
