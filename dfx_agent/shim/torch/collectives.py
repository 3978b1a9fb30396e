"""Records collectives as the host sees them: methods of ``ProcessGroup``, and ``Work.wait``.

The class is patched, and not the functions of ``torch.distributed``. One patch then covers plain
calls, names that were imported before, FSDP2, DTensor and object collectives, in every thread.
Collectives that C++ issues (functional collectives, compiled graphs) are not recorded but counted:
they increase the group's sequence number, and the gap is the coverage. ``ddp.py`` records DDP's
reducer. Nothing here calls a collective, waits for a device or prolongs the life of a tensor.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from dfx_agent.shim import compiling, meter, recorder, span_writer
from dfx_agent.shim.meter import clock
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.torch import device_time, group_begin, group_end, operations
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    COLLECTIVE_WAIT,
    FAILED,
    NO_STEP,
    PEER,
    WAIT,
)

PATCHES = PatchSet("collectives")

_OPERATIONS, _APART = operations.OPERATIONS, operations.APART
_UNNUMBERED, _measure = operations.UNNUMBERED, operations.measure

_BLOCKING_CALLERS = frozenset({"send", "recv"})
_MAX_PENDING = 4096
_MAX_GROUP_NAMES = 256
_MAX_FRAMES = 4
OTHER = "other"
_DEFAULT_GROUP = "0"  # the group of all ranks has its own name even if the name table is full

_now = time.monotonic_ns
_ident = threading.get_ident

# writer, name id, sequence, t0, slot, span (0 inside a wait), parent, thread, bytes
Begun = tuple[recorder.Recorder, int, int, int, int, int, int, int, float]
# group, the begun record, whether the payload is in host memory, the time on the device's stream
_Call = tuple["TrackedGroup", Begun, bool, device_time.Timing | None]
# writer, group, function that returns the sequence number (None: not available), name id
_CachedCall = tuple[recorder.Recorder, "TrackedGroup", Any, int]


class TrackedGroup:
    """One process group: its name, its sequence numbers, and the name ids of its operations."""

    __slots__ = (
        "_before",
        "caches",
        "count",
        "ids",
        "name",
        "num_apart",
        "peers",
        "ref",
        "writer",
    )  # fmt: skip

    def __init__(self, process_group: Any, name: str) -> None:
        self.ref = weakref.ref(process_group, partial(_forget_group, id(process_group)))
        self.name = name
        self.ids: dict[str, int] = {}
        self.writer: recorder.Recorder | None = None
        self.caches: list[dict[int, _CachedCall]] = []
        # the class' function: a bound method would keep the group alive
        self.count = getattr(type(process_group), "_get_sequence_number_for_group", None)
        if name == OTHER:  # several groups share this name, so numbers would be meaningless
            self.count = None
        self.num_apart = 0
        self._before = NO_STEP
        # rank in the group -> PEER - rank in the job, for sends and receives
        self.peers: dict[int, int] = {}

    def sequence(self) -> int:
        """Collectives enqueued so far, including those of C++; NO_STEP if the backend has none."""
        process_group = self.ref()
        if self.count is None or process_group is None:
            return NO_STEP
        try:
            return self.count(process_group) - self.num_apart  # type: ignore[no-any-return]
        except Exception:  # noqa: BLE001 (a backend without numbers says so by raising)
            self.count = None
            return NO_STEP

    def before_apart(self) -> None:
        """Note the number before a call that not all ranks of the group count."""
        self._before = self.sequence()

    def after_apart(self) -> None:
        """Exclude numbers that only some ranks count: sends, receives and those of a barrier."""
        if self._before != NO_STEP:
            self.num_apart += max(0, self.sequence() - self._before)

    def peer(self, group_rank: int) -> int:
        """The step field of a send or receive; NO_STEP if the rank is unknown."""
        peer = self.peers.get(group_rank)
        return self._new_peer(group_rank) if peer is None else peer

    def _new_peer(self, group_rank: int) -> int:
        try:
            distributed = sys.modules["torch.distributed"]
            rank = int(distributed.get_process_group_ranks(self.ref())[group_rank])
        except Exception:  # noqa: BLE001 (a group that torch does not list)
            return NO_STEP
        if group_rank < 0:
            return NO_STEP
        peer = self.peers[group_rank] = PEER - rank
        return peer

    def id_of(self, writer: recorder.Recorder, operation: str) -> int:
        """Name id of "operation@group"."""
        if writer is not self.writer:
            self.ids, self.writer = {}, writer
        name_id = self.ids.get(operation)
        if name_id is None:
            name_id = self.ids[operation] = writer.name_id(f"{operation}@{self.name}")
        return name_id


_groups: dict[int, TrackedGroup] = {}
_group_names: set[str] = set()
_UNKNOWN: tuple[bool, Any, None] = False, None, None
# id(work) -> (is sync, begun, time of the stream)
_pending: dict[int, tuple[bool, Any, device_time.Timing | None]] = {}
_calls = itertools.count()
count_call = _calls.__next__


def install() -> None:
    """Patch what this torch has."""
    PATCHES.install(_patch)
    device_time.install()


def forget_works_and_groups() -> None:
    """In a forked child: those of the parent are not ours."""
    _pending.clear()
    _groups.clear()


def num_calls() -> int:
    """Number of collectives seen so far."""
    return int(repr(_calls)[len("count(") : -1])  # does not take a number


def seen_groups() -> list[TrackedGroup]:
    """Groups that still exist and had a collective."""
    return [group for group in list(_groups.values()) if group.ref() is not None]


def group_of(process_group: Any) -> TrackedGroup:
    """The group by object identity: requesting its name from C++ costs as much as the record."""
    return _groups.get(id(process_group)) or _new_group(process_group)


def _new_group(process_group: Any) -> TrackedGroup:
    name = str(getattr(process_group, "group_name", "")) or "?"
    is_full = len(_group_names) >= _MAX_GROUP_NAMES
    if is_full and name not in _group_names and name != _DEFAULT_GROUP:
        name = OTHER  # a job that creates groups forever must not fill the name table
    _group_names.add(name)
    return _groups.setdefault(
        id(process_group), TrackedGroup(process_group, name)
    )  # of two threads one


def _forget_group(key: int, _ref: Any, groups: dict[int, TrackedGroup] = _groups) -> None:
    """Drop a freed group. Reads no globals: they are None when the interpreter exits."""
    group = groups.pop(key, None)
    for cached_calls in group.caches if group else ():
        cached_calls.pop(key, None)


def begin(group: TrackedGroup, operation: str, num_bytes: float, sequence: int) -> Begun | None:
    """Add an entry to the table of open spans; None if this process does not record."""
    writer = recorder.current or recorder.active()
    if writer is None:
        return None
    count_call()
    return _enter((writer, group.id_of(writer, operation), sequence), num_bytes)


def end(begun: Begun | None, flags: int) -> None:
    """Write the record and remove the open entry; ``flags`` are kind, BLOCKING and FAILED."""
    if begun is not None and begun[0] is recorder.current:
        try:
            writer, name_id, sequence, t0, slot, span, parent, thread, num_bytes = begun
            writer.end_span(
                slot, t0, _now(), num_bytes, sequence, span, parent, thread, flags, name_id
            )
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()


def abandon(begun: Begun) -> None:
    """Remove the open entry without a record: nothing was issued."""
    if begun[0] is recorder.current and begun[4]:
        begun[0].leave(begun[4])


def entering(kind: int) -> Callable[[Any, float], Begun | None]:
    """Return a function of (writer, name id, sequence, ...) and bytes that adds an open entry.

    It returns None if this process does not record, or if C++ issued the collective. ``_numbered``
    repeats its lines on purpose: a call would add one cold function to every collective.
    """
    get_outer, now, ident, waiting = span_writer.innermost.get, _now, _ident, WAIT

    def enter(issued: Any, num_bytes: float) -> Begun | None:
        if issued is None or issued[0] is not recorder.current:
            return None
        try:
            writer, name_id, sequence = issued[:3]
            outer, parent, flags = get_outer(), 0, kind | BLOCKING
            span = accounted = writer.next_span() & 0xFFFFFFFF
            if outer is not None and outer[0] is writer:
                parent = outer[2]
                if outer[5] == waiting:
                    flags, accounted = kind, 0
            thread = writer.main_id if ident() == writer.main_ident else writer.thread_id()
            t0 = now()
            slot = writer.enter(t0, sequence, span, parent, thread, flags, name_id)
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()
            return None
        return writer, name_id, sequence, t0, slot, accounted, parent, thread, num_bytes

    return enter


_enter = entering(COLLECTIVE)


def _patch(patches: PatchSet) -> None:
    distributed = sys.modules["torch.distributed"]
    process_group = getattr(distributed, "ProcessGroup", None)
    work = getattr(distributed, "Work", None)
    if process_group is None or work is None:
        return
    patches.on_restore(_forget_works)
    for method, (operation, payload_at) in _OPERATIONS.items():
        patches.replace(process_group, method, _wrapper_maker(method, operation, payload_at))
    patches.replace(work, "wait", _wait_wrapper)
    group_begin.patch(patches)
    group_end.patch(patches)


def _wrapper_maker(method: str, operation: str, payload_at: int) -> Callable[[Any, Switch], Any]:
    def make(original: Any, switch: Switch) -> Any:
        is_compiling = compiling.is_compiling
        if operation in _UNNUMBERED:
            peer_at = payload_at + 1 if method in operations.WITH_PEER else None
            begin_call, issued = _unnumbered(operation, payload_at, peer_at)
        else:
            begin_call, issued = _numbered(operation, payload_at), _issued

        def collective(*args: Any, **kwargs: Any) -> Any:
            if not switch.is_on or is_compiling():
                return original(*args, **kwargs)
            begin = meter.is_open and clock()
            call = begin_call(args)
            if begin:
                meter.spent_ns += clock() - begin
            try:
                work = original(*args, **kwargs)
            except BaseException:
                _raised(call, operation)
                raise
            if call is not None:
                issued(call, work, kwargs["opts"] if "opts" in kwargs else args[-1])
                if not switch.is_on:  # disabled meanwhile: nobody sees the wait
                    _forget(id(work))
            return work

        return collective

    return make


def _numbered(operation: str, payload_at: int) -> Callable[[tuple[Any, ...]], _Call | None]:
    """Return a function that begins a collective, in one piece with all data at hand.

    Every function and object that it touches has left the CPU caches (docs/benchmarks.md).
    """
    cached_calls: dict[int, _CachedCall] = {}
    get_outer, now, ident, take_call = span_writer.innermost.get, _now, _ident, count_call

    def begin_call(args: tuple[Any, ...]) -> _Call | None:
        try:
            process_group = args[0]
            call = cached_calls.get(id(process_group))
            if call is None or call[0] is not recorder.current:
                call = _make_cached_call(cached_calls, process_group, operation)
                if call is None:
                    return None
            writer, group, count, name_id = call
            sequence = NO_STEP if count is None else count(process_group) - group.num_apart + 1
            payload = args[payload_at] if len(args) > payload_at else None
            if type(payload) is list and len(payload) == 1:
                payload = payload[0]
            try:
                num_bytes, is_on_host = payload.nbytes, payload.is_cpu  # type: ignore[union-attr]
            except AttributeError:
                num_bytes, is_on_host = _measure(args, payload_at)
            take_call()
            outer = get_outer()
            parent, kind, span = 0, COLLECTIVE | BLOCKING, writer.next_span() & 0xFFFFFFFF
            accounted = span
            if outer is not None and outer[0] is writer:
                parent = outer[2]
                if outer[5] == WAIT:
                    kind, accounted = COLLECTIVE, 0
            thread = writer.main_id if ident() == writer.main_ident else writer.thread_id()
            t0 = now()
            slot = writer.enter(t0, sequence, span, parent, thread, kind, name_id)
            begun = writer, name_id, sequence, t0, slot, accounted, parent, thread, num_bytes
            timing = None if is_on_host else device_time.begin(begun, args)
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()
            return None
        return group, begun, is_on_host, timing

    return begin_call


def _make_cached_call(
    cached_calls: dict[int, _CachedCall], process_group: Any, operation: str
) -> _CachedCall | None:
    """Collect the values that all calls of an operation in a group share; None if not recording."""
    writer = recorder.current or recorder.active()
    if writer is None:
        return None
    group = group_of(process_group)
    group.sequence()  # finds out whether the backend counts
    call = writer, group, group.count, group.id_of(writer, operation)
    cached_calls[id(process_group)] = call
    if all(cache is not cached_calls for cache in group.caches):
        group.caches.append(cached_calls)
    return call


def _issued(call: _Call, work: Any, options: Any, depth: int = 3) -> None:
    """After the call: the work is over, awaited on the next line (sync), or later (async)."""
    begin = meter.is_open and clock()
    try:
        group, begun, is_on_host, timing = call
        if work is None:
            flags, sequence = COLLECTIVE | BLOCKING if is_on_host else COLLECTIVE, group.sequence()
            if timing is not None and sequence == begun[2]:  # else it was only prepared
                timing.mark(is_last=True)
            end(_with_number(begun, sequence), flags)
            return
        # a device's stream waits, not the host: the call is over before the collective is
        is_async = getattr(options, "asyncOp", None) if is_on_host else True
        if is_async is None:
            is_async = not _caller_waits(depth)
        if is_async and begun[0] is recorder.current:
            writer, name_id, sequence, t0, slot, span, parent, thread, num_bytes = begun
            writer.end_span(
                slot, t0, _now(), num_bytes, sequence, span, parent, thread, COLLECTIVE, name_id
            )
        if len(_pending) >= _MAX_PENDING:
            _forget_works(_MAX_PENDING // 4)
        _pending[id(work)] = not is_async, begun, timing
        if begin:
            meter.spent_ns += clock() - begin
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _unnumbered(
    operation: str, payload_at: int, peer_at: int | None
) -> tuple[Callable[[tuple[Any, ...]], _Call | None], Callable[[_Call, Any, Any], None]]:
    """Return (begin, end) functions for calls without a sequence number, such as send."""
    is_apart = operation in _APART

    def begin_call(args: tuple[Any, ...]) -> _Call | None:
        try:
            group = group_of(args[0])
            if is_apart:
                group.before_apart()
            num_bytes, is_on_host = _measure(args, payload_at)
            peer = NO_STEP
            if peer_at is not None and len(args) > peer_at:
                peer = group.peer(args[peer_at])
            begun = begin(group, operation, num_bytes, peer)
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()
            return None
        return None if begun is None else (group, begun, is_on_host, None)

    def issued(call: _Call, work: Any, options: Any) -> None:
        group, begun, is_on_host, _ = call
        if is_apart:
            group.after_apart()
        if work is None:
            end(begun, COLLECTIVE | BLOCKING if is_on_host else COLLECTIVE)
        else:
            _issued(call, work, options, depth=4)

    return begin_call, issued


def _caller_waits(depth: int) -> bool:
    """Whether torch's caller waits on its next line; for options that do not contain this."""
    frame: Any = sys._getframe(depth)  # noqa: SLF001 (this, _issued, collective, then the caller)
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


def _with_number(begun: Begun, sequence: int) -> Begun:
    return (*begun[:2], sequence, *begun[3:])


def _raised(call: _Call | None, operation: str) -> None:
    """The call raised: it has a number only if it was enqueued before the exception."""
    if call is not None:
        try:
            group, begun, *_ = call
            if operation in _APART:
                group.after_apart()
            elif group.sequence() < begun[2]:
                begun = _with_number(begun, NO_STEP)
            end(begun, COLLECTIVE | BLOCKING | FAILED)
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()


def _wait_wrapper(original: Any, _switch: Switch) -> Any:
    is_compiling, take = compiling.is_compiling, _pending.pop
    begin_wait, now = entering(COLLECTIVE_WAIT), _now

    def wait(*args: Any, **kwargs: Any) -> Any:
        if not _pending or is_compiling():
            return original(*args, **kwargs)
        is_sync, begun, timing = take(id(args[0]), _UNKNOWN)
        if timing is not None:
            timing.mark()
        flags = COLLECTIVE | BLOCKING
        if not is_sync:
            flags, begun = COLLECTIVE_WAIT, begin_wait(begun, 0.0)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            end(begun, flags | FAILED)
            raise
        begin = meter.is_open and clock()
        if timing is not None:
            timing.mark(is_last=True)
        if begun is not None and begun[0] is recorder.current:
            try:
                writer, name_id, sequence, t0, slot, span, parent, thread, num_bytes = begun
                writer.end_span(
                    slot, t0, now(), num_bytes, sequence, span, parent, thread, flags, name_id
                )
            except Exception:  # noqa: BLE001 (never into the job)
                recorder.count_error()
        if begin:
            meter.spent_ns += clock() - begin
        return result

    return wait


def _forget_works(num_oldest: int | None = None) -> None:
    """Record collectives that nobody waits for, or whose wait is not seen, without a number."""
    for key in list(_pending)[:num_oldest]:
        _forget(key)


def _forget(key: int) -> None:
    is_sync, begun, _ = _pending.pop(key, _UNKNOWN)
    if is_sync:
        end(begun, COLLECTIVE)
