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
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    COLLECTIVE_WAIT,
    FAILED,
    NO_STEP,
    WAIT,
)

PATCHES = PatchSet("collectives")

# method of ProcessGroup -> the operation's name in torch.distributed, and which argument holds what
# moves (the other one of the first two where it is empty); names changed over versions
_OPERATIONS = {
    "allreduce": ("all_reduce", 1),
    "allreduce_coalesced": ("all_reduce_coalesced", 1),
    "broadcast": ("broadcast", 1),
    "reduce": ("reduce", 1),
    "allgather": ("all_gather", 1),
    "_allgather_base": ("all_gather_into_tensor", 1),
    "all_gather_single": ("all_gather_into_tensor", 1),
    "allgather_coalesced": ("all_gather_coalesced", 1),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "gather": ("gather", 1),
    "gather_single": ("gather", 1),
    "gather_into_tensor": ("gather", 1),
    "scatter": ("scatter", 2),
    "reduce_scatter": ("reduce_scatter", 2),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 2),
    "reduce_scatter_single": ("reduce_scatter_tensor", 2),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 2),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", 2),
    "alltoall": ("all_to_all", 2),
    "alltoall_base": ("all_to_all_single", 2),
    "all_to_all_single": ("all_to_all_single", 2),
    "barrier": ("barrier", 1),
    "monitored_barrier": ("monitored_barrier", 1),
    "send": ("send", 1),
    "recv": ("recv", 1),
    "recv_anysource": ("recv", 1),
    "_end_coalescing": ("coalesced", 1),
}
# gloo numbers these like collectives, but not the same on every rank
_APART = frozenset({"send", "recv", "monitored_barrier"})
_UNNUMBERED = _APART | {"coalesced"}
_BLOCKING_CALLERS = frozenset({"send", "recv"})
_MAX_PENDING = 4096
_MAX_GROUP_NAMES = 256
_MAX_TENSORS = 32
_MAX_FRAMES = 4
_OTHER = "other"
_DEFAULT_GROUP = "0"  # the group of all ranks keeps its name, however many others came first

_now = time.monotonic_ns

# writer, name id, sequence, t0, slot, span (0 inside a wait), parent, thread, bytes
_Begun = tuple[recorder.Recorder, int, int, int, int, int, int, int, float]


class Group:
    """One process group: its name, its sequence numbers, the name ids of its operations."""

    __slots__ = ("_before", "_count", "_num_apart", "ids", "name", "ref", "writer")

    def __init__(self, process_group: Any, name: str) -> None:
        key = id(process_group)
        self.ref = weakref.ref(process_group, lambda _ref: _groups.pop(key, None))
        self.name = name
        self.ids: dict[str, int] = {}
        self.writer: recorder.Recorder | None = None
        # the class' function: a bound method would keep the group alive
        self._count = getattr(type(process_group), "_get_sequence_number_for_group", None)
        if name == _OTHER:  # numbers of different groups under one name would say nothing
            self._count = None
        self._num_apart = 0
        self._before = NO_STEP

    def sequence(self) -> int:
        """Collectives enqueued so far, by C++ too; NO_STEP where the backend does not count."""
        process_group = self.ref()
        if self._count is None or process_group is None:
            return NO_STEP
        try:
            return self._count(process_group) - self._num_apart  # type: ignore[no-any-return]
        except Exception:  # noqa: BLE001 (a backend without numbers says so by raising)
            self._count = None
            return NO_STEP

    def before_apart(self) -> None:
        self._before = self.sequence()

    def after_apart(self) -> None:
        """Leave out what only some ranks count: sends and receives, also those of a barrier."""
        if self._before != NO_STEP:
            self._num_apart += max(0, self.sequence() - self._before)

    def id_of(self, writer: recorder.Recorder, operation: str) -> int:
        """Name id of "operation@group"."""
        if writer is not self.writer:
            self.ids, self.writer = {}, writer
        known = self.ids.get(operation)
        if known is None:
            known = self.ids[operation] = writer.name_id(f"{operation}@{self.name}")
        return known


_groups: dict[int, Group] = {}
_group_names: set[str] = set()
_UNKNOWN: tuple[bool, Any] = False, None
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
    return _groups.get(id(process_group)) or _new_group(process_group)


def _new_group(process_group: Any) -> Group:
    with _lock:
        name = str(getattr(process_group, "group_name", "")) or "?"
        is_full = len(_group_names) >= _MAX_GROUP_NAMES
        if is_full and name not in _group_names and name != _DEFAULT_GROUP:
            name = _OTHER  # groups made and destroyed for ever must not fill the name table
        _group_names.add(name)
        group = _groups[id(process_group)] = Group(process_group, name)
        return group


def begin(group: Group, operation: str, num_bytes: float, sequence: int) -> _Begun | None:
    """Enter the in-flight table; None when nobody records."""
    global _num_calls  # noqa: PLW0603 (two threads at the same instant may count one)
    writer = recorder.current or recorder.active()
    if writer is None:
        return None
    _num_calls += 1
    name_id = group.ids.get(operation) if group.writer is writer else None
    if name_id is None:
        name_id = group.id_of(writer, operation)
    return _enter(writer, COLLECTIVE, name_id, num_bytes, sequence)


def end(begun: _Begun | None, flags: int) -> None:
    """Write the record and leave the in-flight table; ``flags``: kind, BLOCKING, FAILED."""
    if begun is not None and begun[0] is recorder.current:
        try:
            writer, name_id, sequence, t0, slot, span, parent, thread, num_bytes = begun
            writer.emit(t0, _now(), num_bytes, sequence, span, parent, thread, flags, name_id)
            if slot:
                writer.leave(slot)
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()


def abandon(begun: _Begun) -> None:
    """It was none: leave the in-flight table without a record."""
    if begun[0] is recorder.current and begun[4]:
        begun[0].leave(begun[4])


def _enter(
    writer: recorder.Recorder, kind: int, name_id: int, num_bytes: float, sequence: int
) -> _Begun:
    outer = recorder.innermost.get()
    parent = outer[2] if outer is not None and outer[0] is writer else 0
    is_accounted = not parent or outer[5] != WAIT  # type: ignore[index]
    if is_accounted:
        kind |= BLOCKING
    thread = writer._thread.native_id  # noqa: SLF001 (a method call less in the hottest path)
    span = writer.next_span() & 0xFFFFFFFF
    now = _now()
    slot = writer.enter(now, sequence, span, parent, thread, kind, name_id)
    span = span if is_accounted else 0
    return writer, name_id, sequence, now, slot, span, parent, thread, num_bytes


def _patch(patches: PatchSet) -> None:
    distributed = sys.modules["torch.distributed"]
    process_group = getattr(distributed, "ProcessGroup", None)
    work = getattr(distributed, "Work", None)
    if process_group is None or work is None:
        return
    patches.on_restore(_forget_works)
    for method, (operation, payload_at) in _OPERATIONS.items():
        patches.replace(process_group, method, _wrapper_maker(operation, payload_at))
    patches.replace(work, "wait", _wait_wrapper)


def _wrapper_maker(operation: str, payload_at: int) -> Callable[[Any, Switch], Any]:
    def make(original: Any, switch: Switch) -> Any:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if not switch.is_on or compiling.is_compiling():
                return original(*args, **kwargs)
            call = _begin_call(operation, payload_at, args)
            try:
                work = original(*args, **kwargs)
            except BaseException:
                _raised(call, operation)
                raise
            if call is not None:
                _issued(call, operation, work, kwargs.get("opts", args[-1]))
                if not switch.is_on:  # taken back meanwhile: nobody sees the wait
                    _forget(id(work))
            return work

        return collective

    return make


def _begin_call(
    operation: str, payload_at: int, args: tuple[Any, ...]
) -> tuple[Group, _Begun, bool] | None:
    """(group, what has begun, whether the host waits for it); None when it cannot be recorded."""
    try:
        group = _groups.get(id(args[0])) or _new_group(args[0])
        if operation in _UNNUMBERED:
            sequence = NO_STEP
            if operation in _APART:
                group.before_apart()
        else:
            sequence = group.sequence()
            if sequence != NO_STEP:
                sequence += 1
        payload = args[payload_at] if len(args) > payload_at else None
        if type(payload) is list and len(payload) == 1:
            payload = payload[0]
        try:
            num_bytes, is_on_host = payload.nbytes, payload.is_cpu  # type: ignore[union-attr]
        except AttributeError:
            num_bytes, is_on_host = _measure(args, payload_at)
        begun = begin(group, operation, num_bytes, sequence)
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()
        return None
    return None if begun is None else (group, begun, is_on_host)


def _issued(call: tuple[Group, _Begun, bool], operation: str, work: Any, options: Any) -> None:
    """Back from C++: over, or waited for on the next line (sync), or later (async)."""
    try:
        group, begun, is_on_host = call
        if operation in _APART:
            group.after_apart()
        if work is None:
            begun = begun if operation in _UNNUMBERED else _numbered(begun, group.sequence())
            end(begun, COLLECTIVE | BLOCKING if is_on_host else COLLECTIVE)
            return
        # a device's stream waits, not the host: the call is over before the collective is
        is_async = getattr(options, "asyncOp", None) if is_on_host else True
        is_sync = _caller_waits() if is_async is None else not is_async
        if not is_sync:
            end(begun, COLLECTIVE)
        if len(_pending) >= _MAX_PENDING:
            _forget_works(_MAX_PENDING // 4)
        _pending[id(work)] = is_sync, begun
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _caller_waits() -> bool:
    """Whether torch waits on its next line, by its own calling function.

    For options that do not say: those of torch < 2.7, of send and of receive.
    """
    frame: Any = sys._getframe(3)  # noqa: SLF001 (this, _issued, collective, then the caller)
    for _ in range(_MAX_FRAMES):  # send calls isend, with a decorator in between; others wrap too
        if frame is None:
            break
        code = frame.f_code
        if frame.f_globals.get("__name__", "").startswith("torch.distributed"):
            if code.co_name in _BLOCKING_CALLERS:
                return True
            if "async_op" in code.co_varnames:
                return frame.f_locals["async_op"] is False
        frame = frame.f_back
    return False


def _numbered(begun: _Begun, sequence: int) -> _Begun:
    return (*begun[:2], sequence, *begun[3:])


def _raised(call: tuple[Group, _Begun, bool] | None, operation: str) -> None:
    """The call raised: it has a number only if it was enqueued before that."""
    if call is not None:
        try:
            group, begun, _ = call
            if operation in _APART:
                group.after_apart()
            elif group.sequence() < begun[2]:
                begun = _numbered(begun, NO_STEP)
            end(begun, COLLECTIVE | BLOCKING | FAILED)
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()


def _wait_wrapper(original: Any, _switch: Switch) -> Any:
    def wait(*args: Any, **kwargs: Any) -> Any:
        if not _pending or compiling.is_compiling():
            return original(*args, **kwargs)
        is_sync, begun = _pending.pop(id(args[0]), _UNKNOWN)
        flags = COLLECTIVE | BLOCKING
        if not is_sync:
            flags, begun = COLLECTIVE_WAIT, _begin_wait(begun)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            end(begun, flags | FAILED)
            raise
        end(begun, flags)
        return result

    return wait


def _begin_wait(issued: _Begun | None) -> _Begun | None:
    """Waiting for a work that was issued before; None where C++ issued it, or nobody records."""
    writer = recorder.current
    if issued is None or writer is None or issued[0] is not writer:
        return None
    try:
        return _enter(writer, COLLECTIVE_WAIT, issued[1], 0.0, issued[2])
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()
        return None


def _forget_works(num_oldest: int | None = None) -> None:
    """Nobody waits for them, or nobody sees it from now on; all without a number."""
    for key in list(_pending)[:num_oldest]:
        _forget(key)


def _forget(key: int) -> None:
    is_sync, begun = _pending.pop(key, _UNKNOWN)
    if is_sync:
        end(begun, COLLECTIVE)


def _measure(args: tuple[Any, ...], at: int) -> tuple[float, bool]:
    """(bytes that this rank hands in or takes out, whichever is more; whether they are the host's).

    All of a list of tensors, long ones judged by their first 32; what has no bytes is the host's.
    """
    payload = args[at] if len(args) > at else None
    if isinstance(payload, (list, tuple)) and not payload and len(args) > 2:
        payload = args[3 - at]  # gather and scatter: only the root has the whole
    while isinstance(payload, (list, tuple)) and len(payload) == 1:
        payload = payload[0]
    try:
        return payload.nbytes, payload.is_cpu  # type: ignore[union-attr]
    except AttributeError:
        if not isinstance(payload, (list, tuple)) or not payload:
            return 0.0, True
    parts = [_measure((part,), 0) for part in payload[:_MAX_TENSORS]]
    return sum(size for size, _ in parts) * len(payload) / len(parts), parts[0][1]
