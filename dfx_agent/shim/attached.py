"""A guest that an agent brought into a running job: in, out again, and out by itself without one.

The lease is the agent's lock on the folder of segments. When nobody has held it for the grace
period (the agent was killed), or when a request lies beside the segment, everything is put back and
the modules of the guest go. Only what came by ``attach`` leaves: a job that was started with
``dfx-agent run``, or that calls dfx itself, keeps its guest.

Files beside ``<pid>-<id>.seg``: ``.attached`` (JSON: who brought us in, ours) and ``.detach`` (the
request, the agent's). The note goes when nothing of ours is left.
"""

# no `from __future__ import annotations`: dataclasses resolve text annotations through
# sys.modules, which does not contain an attached guest
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dfx_agent import __version__
from dfx_agent.shim import identity, recorder
from dfx_agent.shim.lifecycle import guest
from dfx_agent.wire import variables
from dfx_agent.wire.layout import UNKNOWN
from dfx_agent.wire.segment import SIDE_FILE_SUFFIXES, SUFFIX

NOTE_SUFFIX = ".attached"
REQUEST_SUFFIX = ".detach"
LOCK_NAME = "agent.lock"

_IMPORT_SECONDS = 120.0
_NUMBERS = ("rank", "local_rank", "world_size", "node_rank")
_NAMED_BY = {"run": variables.RUN, "role": variables.ROLE, "framework": variables.FRAMEWORK}
# of a process that has a rank in torch.distributed, whatever it looks like from outside
_WEAK_ROLES = frozenset({"", "driver", "collector"})

Answer = dict[str, Any]


@dataclass
class _Visit:
    """One stay in this process."""

    directory: str
    stem: str
    agent_pid: int
    grace_seconds: float
    max_overhead_ratio: float | None
    since_epoch_seconds: float
    alone_since_ns: int | None = None

    def look(self) -> None:
        """About once a second: leave when asked to, or when nobody is there any more."""
        if os.path.lexists(self.stem + REQUEST_SUFFIX):
            leave()
        elif agent_is_there(self.directory):
            self.alone_since_ns = None
        else:
            now = time.monotonic_ns()
            since = self.alone_since_ns = self.alone_since_ns or now
            if now - since >= self.grace_seconds * 1e9:
                leave(nobody_reads=True)


def attach(
    directory: str,
    *,
    agent_pid: int,
    grace_seconds: float,
    known: Mapping[str, Any],
    max_overhead_ratio: float | None = None,
    unload: Callable[[], None] | None = None,
) -> Answer:
    """Start recording into ``directory``; called in a thread of our own, which may wait.

    ``known`` holds the fields of Identity that the agent has found out. ``max_overhead_ratio`` is
    the guest's budget, None for that of the visit that is going on, else of the environment.
    ``unload`` forgets the guest's modules, None when they were here before. The answer's "state" is
    attached, observed (the guest was here already, and stays), busy (with another agent's folder)
    or skipped.
    Raises what made it impossible; nothing of ours is left then.
    """
    guest.unload = unload or guest.unload
    if _is_data_loader_worker():
        _forget_modules()
        return _answer("skipped", message="a worker of a DataLoader")
    if recorder.current is not None:
        return _answer_of_present(directory, agent_pid, grace_seconds, max_overhead_ratio)
    _wait_for_torch()
    was_armed = guest.state == "armed"
    try:
        guest.begin(directory, _who(known))
        _forget_last_note()
        writer = recorder.current
        if writer is None or was_armed:  # preloaded by `run`: it had nothing to record until now
            return _answer("observed", segment=writer.path if writer else "")
        writer.is_attached = True
        _stay(writer.path, directory, agent_pid, grace_seconds, max_overhead_ratio)
    except BaseException:
        leave()
        raise
    return _answer("attached", segment=writer.path)


def _stay(
    segment: str, directory: str, agent_pid: int, grace_seconds: float, ratio: float | None
) -> None:
    """The visit begins: it is noted for other agents, and looked after."""
    stem = segment.removesuffix(SUFFIX)
    visit = _Visit(directory, stem, agent_pid, grace_seconds, _allow(ratio), time.time())
    guest.visit = visit
    _write_note(visit)
    guest.watch()


def leave(*, nobody_reads: bool = False) -> None:
    """Stop recording and put everything back; the last hooks go with the job's next backward."""
    visit: _Visit | None = guest.visit
    guest.visit = None
    guest.last_visit = visit or guest.last_visit
    guest.withdraw(_gone)
    if visit is not None:
        _unlink(visit.stem + REQUEST_SUFFIX)
        if nobody_reads:  # and the next agent would find the memory of a job that is long over
            for suffix in (SUFFIX, *SIDE_FILE_SUFFIXES):
                _unlink(visit.stem + suffix)


def _gone() -> None:
    """Nothing of ours is in the job's objects any more."""
    _forget_modules()
    _forget_last_note()


def _forget_last_note() -> None:
    visit, guest.last_visit = guest.last_visit, None
    if visit is not None:
        _unlink(visit.stem + NOTE_SUFFIX)


def _forget_modules() -> None:
    if guest.unload is not None:
        guest.unload()


def _allow(ratio: float | None) -> float | None:
    """Set the guest's budget; the one that is in force."""
    from dfx_agent.shim.torch import overhead  # noqa: PLC0415 (torch's side as well)

    overhead.allowed_ratio = ratio
    return variables.MAX_OVERHEAD.value() if ratio is None else ratio


def _answer_of_present(
    directory: str, agent_pid: int, grace_seconds: float, max_overhead_ratio: float | None
) -> Answer:
    """This process records already: for an agent that died, for another one, or by itself."""
    writer, visit = recorder.current, guest.visit
    segment = writer.path if writer is not None else ""
    if visit is None:
        return _answer("observed", segment=segment)
    if os.path.realpath(visit.directory) != os.path.realpath(directory):
        since = time.strftime("%F %T", time.localtime(visit.since_epoch_seconds))
        message = (
            f"dfx-agent pid {visit.agent_pid} is attached to pid {os.getpid()} since {since} "
            f"(folder {visit.directory})"
        )
        return _answer("busy", segment=segment, message=message)
    visit.agent_pid, visit.grace_seconds, visit.alone_since_ns = agent_pid, grace_seconds, None
    if max_overhead_ratio is not None:
        visit.max_overhead_ratio = _allow(max_overhead_ratio)
    _write_note(visit)
    return _answer("attached", segment=segment)


def _answer(state: str, *, segment: str = "", message: str = "") -> Answer:
    python = ".".join(map(str, sys.version_info[:2]))
    return {
        "state": state,
        "segment": segment,
        "message": message,
        "version": __version__,
        "python": python,
        "pid": os.getpid(),
    }


def _who(known: Mapping[str, Any]) -> dict[str, Any]:
    """What the agent found out, less what this process knows better.

    That is its environment as it is now (Ray and verl change it after the start) and its process
    group.
    """
    own = identity.from_environment()
    given = {key: value for key, value in known.items() if value is not None}
    for name in _NUMBERS:
        if getattr(own, name) != UNKNOWN:
            given.pop(name, None)
    for name, variable in _NAMED_BY.items():
        if variable.value():
            given.pop(name, None)
    if own.rank == UNKNOWN:
        given |= _place_in_group(given.get("role", ""))
    return given


def _place_in_group(role: str) -> dict[str, Any]:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {}
    place = {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    return place | ({"role": "trainer"} if role in _WEAK_ROLES else {})


def _wait_for_torch() -> None:
    """A torch that is being imported right now has half of what we hook into."""
    end = time.monotonic() + _IMPORT_SECONDS
    while _is_being_imported("torch") and time.monotonic() < end:
        time.sleep(0.05)


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _is_data_loader_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def agent_is_there(directory: str) -> bool:
    """Whether an agent holds its lock; also when that cannot be told."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(os.path.join(directory, LOCK_NAME), flags)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # said and not left to close: a child forked just now has this file open too
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _write_note(visit: _Visit) -> None:
    note = {
        "agent_pid": visit.agent_pid,
        "since_epoch_seconds": visit.since_epoch_seconds,
        "grace_seconds": visit.grace_seconds,
        "max_overhead_ratio": visit.max_overhead_ratio,
        "version": __version__,
    }
    path = visit.stem + NOTE_SUFFIX
    fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(note).encode())
    finally:
        os.close(fd)
    os.rename(f"{path}.tmp", path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
