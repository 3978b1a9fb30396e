"""Collectives that C++ issues by itself, where torch tells of them (>= 2.14): a group's own hooks.

Functional collectives (DTensor, tensor parallelism), compiled graphs and DDP's broadcasts pass no
method of ``ProcessGroup``; ``register_pre_hook`` and ``register_post_hook`` see them, in the thread
that issues them. They are called for what ``collectives`` records as well, and pass it over: a
group gets hooks only once its number has gone on without records.

torch goes through a group's hooks without the GIL and without a lock: one that comes or goes
meanwhile crashes the job. So the thread that trains puts them in and takes them out, at the begin
of its backward and while no other thread is inside torch; where that cannot be they stay, and do
nothing. What a hook raises comes out of the collective, which is not issued then: they never raise.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from dfx_agent.shim import collectives, ddp, operations, recorder, torch_hooks
from dfx_agent.shim.collectives import Group
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.wire.records import COLLECTIVE, NO_STEP

PATCHES = PatchSet("group_hooks")

_HOOK_ID = 0x646678  # the same in every group: one that had to stay is replaced by the next
_MAX_GROUPS = 256
_MIN_MISSED, _MIN_MISSED_RATIO = 3, 0.1
_WINDOW = 100  # collectives after which a group is judged anew
_NOTHING = "", None
_INSIDE_TORCH = (
    "torch.distributed", "torch.autograd", "torch._ops", "torch._dynamo", "torch._functorch",
    "dfx_agent.shim.collectives",
)  # fmt: skip
_TENSORS = ("input_tensors", "output_tensors")
_HAVE_WHOLE_IN_OUTPUT = ("all_gather", "gather", "recv")
_WRAPPER = collectives._wrapper_maker("", 1)(len, Switch()).__code__  # noqa: SLF001

_hooked: set[Group] = set()
_wanted: set[int] = set()  # ids of process groups
# a group's number and records when it was judged last, and how often some were missing
_before: dict[int, tuple[int, int, int]] = {}
# HookOpName -> the operation's name, and where to look for what moves, in this order
_operations: dict[int, tuple[str, str, str]] = {}
_ident = threading.get_ident
_owner = 0  # the thread that put hooks in


def install() -> None:
    """Follow the groups of this process; absent where torch has no such hooks."""
    PATCHES.install(_follow)


def look() -> None:
    """Once a second, by the watch thread: which groups go on without records."""
    must_settle = bool(_hooked)
    if PATCHES.is_active:
        process_groups = _process_groups()
        _wanted.update(id(each) for each in process_groups if _is_missed(each))
        for key in _before.keys() - {id(each) for each in process_groups}:
            _before.pop(key, None)
        must_settle = bool(_wanted)
    if must_settle and _settle not in torch_hooks.before_next_backward:
        torch_hooks.before_next_backward.append(_settle)


def _follow(patches: PatchSet) -> None:
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    process_group = getattr(c10d, "ProcessGroup", None)
    if hasattr(process_group, "register_post_hook") and collectives.PATCHES.is_active:
        known = operations.OPERATIONS
        for name, value in c10d.HookOpName.__members__.items():
            method = name.lower()
            operation, _ = known.get(method) or known.get(f"_{method}", (method, 1))
            is_output = operation.startswith(_HAVE_WHOLE_IN_OUTPUT)
            first, second = _TENSORS[::-1] if is_output else _TENSORS
            _operations[int(value)] = operation, first, second
        patches.on_restore(_leave)


def _process_groups() -> list[Any]:
    distributed: Any = sys.modules["torch.distributed.distributed_c10d"]
    return list(distributed._world.pg_map)[:_MAX_GROUPS]  # noqa: SLF001


def _is_missed(process_group: Any) -> bool:
    """Whether the group goes on counting what nobody records: twice, for models are sent once."""
    key = id(process_group)
    known = collectives._groups.get(key)  # noqa: SLF001
    if known is not None and (known in _hooked or _is_reduced(known)):
        return False
    group = known or Group(process_group, "")
    now = group.sequence(), group.num_seen
    sequence, num_recorded, num_times = _before.setdefault(key, (*now, 0))
    advance = now[0] - sequence
    num_missed = advance - (now[1] - num_recorded)
    is_missed = num_missed >= max(_MIN_MISSED, _MIN_MISSED_RATIO * advance)
    if is_missed or not 0 <= advance < _WINDOW:
        _before[key] = *now, num_times + 1 if is_missed else 0
    return is_missed and num_times > 0


def _is_reduced(group: Group) -> bool:
    """Whether DDP reduces in it: its one record stands for all that went before."""
    return any(replica.group is group and replica.ref() is not None for replica in ddp.replicas)


def _settle() -> None:
    """In the thread that trains, at the begin of its backward; ``look`` asks again if it cannot."""
    global _owner  # noqa: PLW0603
    try:
        if not _is_quiet():
            return
        if not PATCHES.is_active:
            _leave()
            return
        _owner = _ident()
        _hooked.difference_update([group for group in _hooked if group.ref() is None])
        for process_group in _process_groups():
            if id(process_group) in _wanted:
                _hook(process_group)
        _wanted.clear()
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _is_quiet() -> bool:
    """Whether no other thread can be inside a collective, and this one not in a hook of ours."""
    hooks = _Hooks.before.__code__, _Hooks.after.__code__
    own = _ident()
    for thread, top in sys._current_frames().items():  # noqa: SLF001
        frame: Any = top
        while frame is not None:
            name = str(frame.f_globals.get("__name__"))
            if frame.f_code in hooks or (thread != own and name.startswith(_INSIDE_TORCH)):
                return False
            frame = frame.f_back
    return True


def _hook(process_group: Any) -> None:
    group = collectives.group_of(process_group)
    if group not in _hooked and group.sequence() != NO_STEP and not _is_reduced(group):
        hooks = _Hooks(group, PATCHES.switch)
        process_group.register_post_hook(_HOOK_ID, hooks.after)
        process_group.register_pre_hook(_HOOK_ID, hooks.before)
        _hooked.add(group)


def _leave() -> None:
    """No hook of ours is left, or none that does anything."""
    groups = _hooked.copy()
    _hooked.clear()
    _wanted.clear()
    if groups and _ident() == _owner and _is_quiet():
        for process_group in filter(None, (group.ref() for group in groups)):
            process_group.unregister_pre_hook(_HOOK_ID)
            process_group.unregister_post_hook(_HOOK_ID)


class _Hooks:
    """Of one group; ``before`` and ``after`` are called by C++, in any thread."""

    def __init__(self, group: Group, switch: Switch) -> None:
        self._group = group
        self._switch = switch
        self._opened: dict[int, tuple[str, Any]] = {}  # thread -> what it is issuing

    def before(self, arguments: Any) -> None:
        if self._switch.is_on:
            try:
                caller = sys._getframe().f_back  # noqa: SLF001 (none in a thread of the engine)
                if self._opened:
                    self._end(has_failed=True)  # nobody came after it: it raised
                if not _is_recorded(caller):
                    self._begin(arguments)
            except Exception:  # noqa: BLE001 (it would come out of the collective)
                recorder.count_error()

    def after(self, _arguments: Any) -> None:
        if self._opened:
            try:
                self._end(has_failed=False)
            except Exception:  # noqa: BLE001 (it would come out of the collective)
                recorder.count_error()

    def _begin(self, arguments: Any) -> None:
        group = self._group
        operation, first, second = _operations[int(arguments.name)]
        if ddp.replicas and operation == "all_reduce" and _has_ddp(group):
            return
        sequence = NO_STEP
        if operation in operations.APART:
            group.before_apart()
        elif (num_enqueued := group.sequence()) != NO_STEP:
            sequence = num_enqueued + 1
        tensors = getattr(arguments, first) or getattr(arguments, second)
        num_bytes, _ = operations.measure(tensors if len(tensors) == 1 else (tensors,), 0)
        begun = collectives.begin(group, operation, num_bytes, sequence)
        if begun is not None:
            self._opened[_ident()] = operation, begun

    def _end(self, *, has_failed: bool) -> None:
        """Enqueued: who waits for it, and when, is not seen."""
        operation, begun = self._opened.pop(_ident(), _NOTHING)
        if begun is None:
            return
        if has_failed:
            collectives._raised((self._group, begun, True), operation)  # noqa: SLF001
            return
        if operation in operations.APART:
            self._group.after_apart()
        collectives.end(begun, COLLECTIVE)


def _is_recorded(caller: Any) -> bool:
    """Whether the class' wrapper called; another tool that was there first stands in between."""
    if caller is None or caller.f_code is _WRAPPER:
        return caller is not None
    outer = caller.f_back
    return outer is not None and outer.f_code is _WRAPPER


def _has_ddp(group: Group) -> bool:
    """Whether ``ddp`` follows a backward that reduces in this group: it records the whole."""
    return ddp.PATCHES.is_active and any(
        replica.group is group and replica.tells_of_backward for replica in ddp.replicas
    )
