"""Collectives as the host sees them: every method of ``ProcessGroup``, and ``Work.wait``.

The class is patched and not ``torch.distributed``'s functions: one place sees plain calls, names
that were imported before, FSDP2, DTensor and objects collectives, in every thread. What C++ issues
by itself (functional collectives, compiled graphs) is not seen, but counted: the group's own
sequence number goes on, and the gap is the coverage. DDP's reducer is seen by ``ddp.py``. Nothing
here calls a collective, waits for a device or keeps a tensor alive.
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
_DEFAULT_GROUP = "0"  # the group of all ranks keeps its name, however many others came first

_now = time.monotonic_ns
_ident = threading.get_ident

# writer, name id, sequence, t0, slot, span (0 inside a wait), parent, thread, bytes
Begun = tuple[recorder.Recorder, int, int, int, int, int, int, int, float]
# group, what has begun, whether the host waits for it, the time of a device's stream
_Call = tuple["Group", Begun, bool, device_time.Timing | None]
# writer, group, the class' function that counts (None: nobody does), name id
_Seat = tuple[recorder.Recorder, "Group", Any, int]


class Group:
    """One process group: its name, its sequence numbers, the name ids of its operations."""

    __slots__ = (
        "_before", "count", "ids", "name", "num_apart", "peers", "ref", "seated", "writer",
    )  # fmt: skip

    def __init__(self, process_group: Any, name: str) -> None:
        self.ref = weakref.ref(process_group, partial(_forget_group, id(process_group)))
        self.name = name
        self.ids: dict[str, int] = {}
        self.writer: recorder.Recorder | None = None
        self.seated: list[dict[int, _Seat]] = []
        # the class' function: a bound method would keep the group alive
        self.count = getattr(type(process_group), "_get_sequence_number_for_group", None)
        if name == OTHER:  # numbers of different groups under one name would say nothing
            self.count = None
        self.num_apart = 0
        self._before = NO_STEP
        # by rank in the group, of those sent to or received from: PEER - rank of the job
        self.peers: dict[int, int] = {}

    def sequence(self) -> int:
        """Collectives enqueued so far, by C++ too; NO_STEP where the backend does not count."""
        process_group = self.ref()
        if self.count is None or process_group is None:
            return NO_STEP
        try:
            return self.count(process_group) - self.num_apart  # type: ignore[no-any-return]
        except Exception:  # noqa: BLE001 (a backend without numbers says so by raising)
            self.count = None
            return NO_STEP

    def before_apart(self) -> None:
        self._before = self.sequence()

    def after_apart(self) -> None:
        """Leave out what only some ranks count: sends and receives, also those of a barrier."""
        if self._before != NO_STEP:
            self.num_apart += max(0, self.sequence() - self._before)

    def peer(self, group_rank: int) -> int:
        """What a send or receive has in place of a number; NO_STEP where the rank is not known."""
        known = self.peers.get(group_rank)
        return self._new_peer(group_rank) if known is None else known

    def _new_peer(self, group_rank: int) -> int:
        try:
            distributed = sys.modules["torch.distributed"]
            rank = int(distributed.get_process_group_ranks(self.ref())[group_rank])
        except Exception:  # noqa: BLE001 (a group that torch does not list)
            return NO_STEP
        if group_rank < 0:
            return NO_STEP
        known = self.peers[group_rank] = PEER - rank
        return known

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
    """Collectives seen so far."""
    return int(repr(_calls)[len("count(") : -1])  # does not take a number


def known_groups() -> list[Group]:
    """Groups of which a collective was seen and that still exist."""
    return [group for group in list(_groups.values()) if group.ref() is not None]


def group_of(process_group: Any) -> Group:
    """Found by identity: asking C++ for the name costs as much as the record."""
    return _groups.get(id(process_group)) or _new_group(process_group)


def _new_group(process_group: Any) -> Group:
    name = str(getattr(process_group, "group_name", "")) or "?"
    is_full = len(_group_names) >= _MAX_GROUP_NAMES
    if is_full and name not in _group_names and name != _DEFAULT_GROUP:
        name = OTHER  # groups made and destroyed for ever must not fill the name table
    _group_names.add(name)
    return _groups.setdefault(id(process_group), Group(process_group, name))  # of two threads one


def _forget_group(key: int, _ref: Any, groups: dict[int, Group] = _groups) -> None:
    """Called when a group is freed. Reads no global: they are None when the interpreter ends."""
    group = groups.pop(key, None)
    for seats in group.seated if group else ():
        seats.pop(key, None)


def begin(group: Group, operation: str, num_bytes: float, sequence: int) -> Begun | None:
    """Enter the in-flight table; None when nobody records."""
    writer = recorder.current or recorder.active()
    if writer is None:
        return None
    count_call()
    return _enter((writer, group.id_of(writer, operation), sequence), num_bytes)


def end(begun: Begun | None, flags: int) -> None:
    """Write the record and leave the in-flight table; ``flags``: kind, BLOCKING, FAILED."""
    if begun is not None and begun[0] is recorder.current:
        try:
            writer, name_id, sequence, t0, slot, span, parent, thread, num_bytes = begun
            writer.end_span(
                slot, t0, _now(), num_bytes, sequence, span, parent, thread, flags, name_id
            )
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()


def abandon(begun: Begun) -> None:
    """It was none: leave the in-flight table without a record."""
    if begun[0] is recorder.current and begun[4]:
        begun[0].leave(begun[4])


def entering(kind: int) -> Callable[[Any, float], Begun | None]:
    """What enters the in-flight table, from (writer, name id, sequence, ...) and bytes.

    None where nobody records, or C++ issued what is waited for. One function, as ``_numbered``,
    which has the same lines on purpose: to call this from there is one more cold function a call.
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
                if not switch.is_on:  # taken back meanwhile: nobody sees the wait
                    _forget(id(work))
            return work

        return collective

    return make


def _numbered(operation: str, payload_at: int) -> Callable[[tuple[Any, ...]], _Call | None]:
    """What begins a collective: one function, with all that it touches at hand.

    Between two collectives a job runs through all its memory: each function and object that this
    touches is fetched anew, and that is what a hook costs (docs/benchmarks.md).
    """
    seats: dict[int, _Seat] = {}
    get_outer, now, ident, take_call = span_writer.innermost.get, _now, _ident, count_call

    def begin_call(args: tuple[Any, ...]) -> _Call | None:
        try:
            process_group = args[0]
            seat = seats.get(id(process_group))
            if seat is None or seat[0] is not recorder.current:
                seat = _take_seat(seats, process_group, operation)
                if seat is None:
                    return None
            writer, group, count, name_id = seat
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


def _take_seat(seats: dict[int, _Seat], process_group: Any, operation: str) -> _Seat | None:
    """What a group's calls of one operation have in common; None when nobody records."""
    writer = recorder.current or recorder.active()
    if writer is None:
        return None
    group = group_of(process_group)
    group.sequence()  # finds out whether the backend counts
    seat = writer, group, group.count, group.id_of(writer, operation)
    seats[id(process_group)] = seat
    if all(known is not seats for known in group.seated):
        group.seated.append(seats)
    return seat


def _issued(call: _Call, work: Any, options: Any, depth: int = 3) -> None:
    """Back from C++: over, or waited for on the next line (sync), or later (async)."""
    begin = meter.is_open and clock()
    try:
        group, begun, is_on_host, timing = call
        if work is None:
            flags, sequence = COLLECTIVE | BLOCKING if is_on_host else COLLECTIVE, group.sequence()
            if timing is not None and sequence == begun[2]:  # else it was only put together
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
    """The same two for what has no number of its own: sends, receives, and what they are in."""
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
    """Whether torch waits on its next line, by its own calling function.

    For options that do not say: those of torch < 2.7, of send and of receive.
    """
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
    """The call raised: it has a number only if it was enqueued before that."""
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
    """Nobody waits for them, or nobody sees it from now on; all without a number."""
    for key in list(_pending)[:num_oldest]:
        _forget(key)


def _forget(key: int) -> None:
    is_sync, begun, _ = _pending.pop(key, _UNKNOWN)
    if is_sync:
        end(begun, COLLECTIVE)
