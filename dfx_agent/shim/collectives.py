"""Collectives as the host sees them: every method of ``ProcessGroup``, and ``Work.wait``.

The class is patched and not ``torch.distributed``'s functions: one place sees plain calls, names
that were imported before, FSDP2, DTensor and objects collectives, in every thread (hooks.md
section 1). What C++ issues by itself (functional collectives, compiled graphs) is not seen, but
counted: the group's own sequence number goes on, and the gap is the coverage. DDP's reducer is
seen by ``ddp.py``. Nothing here calls a collective, waits for a device or keeps a tensor alive.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from dfx_agent.shim import compiling, recorder
from dfx_agent.shim.patches import PatchSet
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    COLLECTIVE_WAIT,
    FAILED,
    NO_STEP,
    WAIT,
)

PATCHES = PatchSet("collectives")

# method of ProcessGroup -> the operation's name in torch.distributed; names changed over versions
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv_anysource",
    "_end_coalescing": "coalesced",
}
_POINT_TO_POINT = frozenset({"send", "recv", "recv_anysource"})
_MAX_PENDING = 4096
_MAX_GROUP_NAMES = 256
_MAX_TENSORS = 32

_now = time.monotonic_ns

# writer, name id, sequence, t0, slot, span, parent, thread, bytes, is accounted
_Begun = tuple[recorder.Recorder, int, int, int, int, int, int, int, float, bool]


class Group:
    """One process group: its name, its sequence numbers, the name ids of its operations."""

    def __init__(self, process_group: Any, name: str) -> None:
        self.ref = weakref.ref(process_group)
        self.name = name
        self.ids: dict[str, int] = {}
        self.writer: recorder.Recorder | None = None
        self._counter = getattr(process_group, "_get_sequence_number_for_group", None)
        self._num_point_to_point = 0
        self._before = NO_STEP

    def sequence(self) -> int:
        """Collectives enqueued so far, by C++ too; NO_STEP where the backend does not count."""
        if self._counter is None:
            return NO_STEP
        try:
            return int(self._counter()) - self._num_point_to_point
        except Exception:  # noqa: BLE001 (a backend without numbers says so by raising)
            self._counter = None
            return NO_STEP

    def before_point_to_point(self) -> None:
        self._before = self.sequence()

    def after_point_to_point(self) -> None:
        """Leave sends and receives out: gloo numbers them too, and only two ranks see each."""
        if self._before != NO_STEP and self.sequence() > self._before:
            self._num_point_to_point += 1

    def id_of(self, writer: recorder.Recorder, operation: str) -> int:
        if writer is not self.writer:
            self.ids, self.writer = {}, writer
        known = self.ids.get(operation)
        if known is None:
            known = self.ids[operation] = writer.name_id(f"{operation}@{self.name}")
        return known


_groups: dict[int, Group] = {}
_group_names: set[str] = set()
_pending: dict[int, tuple[bool, Any]] = {}  # id(work) -> (is sync, begun)
_lock = threading.Lock()
_num_calls = 0


def install() -> None:
    """Patch what this torch has."""
    PATCHES.install(_patch)


def after_fork() -> None:
    """Works of the parent are not ours, and its lock may be held for ever."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _pending.clear()
    _groups.clear()


def num_calls() -> int:
    """Collectives seen so far."""
    return _num_calls


def known_groups() -> list[Group]:
    """Groups of which a collective was seen and that still exist."""
    return [group for group in list(_groups.values()) if group.ref() is not None]


def group_of(process_group: Any) -> Group:
    """Found by identity: asking C++ for the name costs as much as the record."""
    known = _groups.get(id(process_group))
    if known is not None and known.ref() is process_group:
        return known
    with _lock:
        if len(_groups) > _MAX_GROUP_NAMES:
            for key in [k for k, group in _groups.items() if group.ref() is None]:
                del _groups[key]
        name = str(getattr(process_group, "group_name", "")) or "?"
        _group_names.add(name)
        if len(_group_names) > _MAX_GROUP_NAMES:
            name = "other"  # groups made and destroyed for ever must not fill the name table
        group = _groups[id(process_group)] = Group(process_group, name)
        return group


def begin(group: Group, operation: str, num_bytes: float, sequence: int) -> _Begun | None:
    """Enter the in-flight table; None when that failed."""
    global _num_calls  # noqa: PLW0603 (two threads at the same instant may count one)
    writer = recorder.current or recorder.active()
    if writer is None:
        return None
    outer = recorder.innermost.get()
    is_accounted, parent = True, 0
    if outer is not None and outer[0] is writer:
        parent, is_accounted = outer[2], outer[5] != WAIT
    _num_calls += 1
    name_id, thread, span = group.id_of(writer, operation), writer.thread_id(), writer.next_span()
    kind = COLLECTIVE | BLOCKING if is_accounted else COLLECTIVE
    now = _now()
    slot = writer.enter(now, sequence, span, parent, thread, kind, name_id)
    return writer, name_id, sequence, now, slot, span, parent, thread, num_bytes, is_accounted


def end(begun: _Begun, flags: int, *, since_ns: int | None = None) -> None:
    """Write the record and leave the in-flight table; ``flags``: kind, BLOCKING, FAILED."""
    writer, name_id, sequence, t0, slot, span, parent, thread, num_bytes, is_accounted = begun
    if writer is recorder.current:
        span = span if is_accounted else 0
        start = t0 if since_ns is None else since_ns
        writer.emit(start, _now(), num_bytes, sequence, span, parent, thread, flags, name_id)
        if slot:
            writer.leave(slot)


def _patch(patches: PatchSet) -> None:
    distributed = sys.modules["torch.distributed"]
    process_group = getattr(distributed, "ProcessGroup", None)
    work = getattr(distributed, "Work", None)
    if process_group is None or work is None:
        return
    for method, operation in _OPERATIONS.items():
        patches.replace(process_group, method, _wrapper_maker(operation))
    patches.replace(work, "wait", _wait_wrapper)


def _wrapper_maker(operation: str) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if not PATCHES.is_active or compiling.is_compiling():
                return original(*args, **kwargs)
            begun = _begin_call(operation, args)
            try:
                work = original(*args, **kwargs)
            except BaseException:
                _finish(begun, COLLECTIVE | BLOCKING | FAILED)
                raise
            if begun is not None:
                _issued(begun, operation, work, args, kwargs)
            return work

        return collective

    return make


def _begin_call(operation: str, args: tuple[Any, ...]) -> _Begun | None:
    try:
        group = group_of(args[0])
        sequence = NO_STEP
        if operation in _POINT_TO_POINT:
            group.before_point_to_point()
        else:
            sequence = group.sequence()
            if sequence != NO_STEP:
                sequence += 1
        num_bytes = _num_bytes(args[1]) if len(args) > 1 else 0.0
        return begin(group, operation, num_bytes, sequence)
    except Exception:  # noqa: BLE001 (never into the job)
        _count_error()
        return None


def _issued(
    begun: _Begun, operation: str, work: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Back from C++: over, or waited for on the next line (sync), or later (async)."""
    try:
        if operation in _POINT_TO_POINT:
            group_of(args[0]).after_point_to_point()
        if work is None:
            end(begun, COLLECTIVE | BLOCKING)
            return
        options = kwargs.get("opts", args[-1])
        is_sync = getattr(options, "asyncOp", True) is False
        if not is_sync:
            end(begun, COLLECTIVE)
        if len(_pending) >= _MAX_PENDING:
            _forget_oldest()
        _pending[id(work)] = is_sync, begun
    except Exception:  # noqa: BLE001 (never into the job)
        _count_error()


def _wait_wrapper(original: Any) -> Any:
    def wait(*args: Any, **kwargs: Any) -> Any:
        if not PATCHES.is_active or compiling.is_compiling():
            return original(*args, **kwargs)
        is_sync, begun = _pending.pop(id(args[0]), (False, None))
        if is_sync:
            flags, waiting = COLLECTIVE | BLOCKING, begun
        else:
            flags, waiting = COLLECTIVE_WAIT, _begin_wait(begun)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            _finish(waiting, flags | FAILED)
            raise
        _finish(waiting, flags)
        return result

    return wait


def _begin_wait(issued: _Begun | None) -> _Begun | None:
    """Waiting for a work that was issued before; None where C++ issued it, or nobody records."""
    writer = recorder.current
    if issued is None or writer is None or issued[0] is not writer:
        return None
    try:
        outer = recorder.innermost.get()
        is_accounted, parent = True, 0
        if outer is not None and outer[0] is writer:
            parent, is_accounted = outer[2], outer[5] != WAIT
        kind = COLLECTIVE_WAIT | BLOCKING if is_accounted else COLLECTIVE_WAIT
        name_id, sequence, span, thread = issued[1], issued[2], writer.next_span(), issued[7]
        now = _now()
        slot = writer.enter(now, sequence, span, parent, thread, kind, name_id)
    except Exception:  # noqa: BLE001 (never into the job)
        _count_error()
        return None
    return writer, name_id, sequence, now, slot, span, parent, thread, 0.0, is_accounted


def _finish(begun: _Begun | None, flags: int) -> None:
    if begun is not None:
        try:
            end(begun, flags)
        except Exception:  # noqa: BLE001 (never into the job)
            _count_error()


def _forget_oldest() -> None:
    """Works that nobody waits for."""
    for key in list(_pending)[: _MAX_PENDING // 4]:
        is_sync, begun = _pending.pop(key, (False, None))
        if is_sync:
            _finish(begun, COLLECTIVE)


def _num_bytes(payload: Any) -> float:
    """Bytes of a tensor or of (lists of) tensors; long lists from the first few."""
    if isinstance(payload, (list, tuple)):
        if not payload:
            return 0.0
        first = [_num_bytes(part) for part in payload[:_MAX_TENSORS]]
        return sum(first) * len(payload) / len(first)
    return float(getattr(payload, "nbytes", 0))


def _count_error() -> None:
    if recorder.current is not None:
        recorder.current.count_error()
