"""The guest that an agent attached to a running job: how it starts and how it leaves again.

An agent holds a lock in the folder of segments as long as it runs. The guest leaves when

- nobody has held that lock for the grace period (the agent was killed), or
- the agent has written a ``.detach`` file next to the segment.

It then restores every patched function and removes its modules. Only a guest that an agent
attached leaves. A job that was started by ``dfx-agent run``, or that calls dfx itself, retains it.

Files next to ``<pid>-<id>.seg``: ``.attached`` (JSON about the agent, written by the guest, removed
when the guest has left) and ``.detach`` (the request, written by the agent).
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
# roles that an outside observer guesses; a process with a rank in torch.distributed is a trainer
_WEAK_ROLES = frozenset({"", "driver", "collector"})

Answer = dict[str, Any]


@dataclass
class _Attachment:
    """The time from one attach to the next detach."""

    directory: str
    """Folder of the segments."""
    stem: str
    """Path of the segment without ``.seg``."""
    agent_pid: int
    grace_seconds: float
    """How long the guest stays without an agent."""
    max_overhead_ratio: float | None
    since_epoch_seconds: float
    """Unix time of the attach."""
    alone_since_ns: int | None = None
    """Monotonic time since which no agent holds the lock; None if one does."""

    def check(self) -> None:
        """Leave if the agent asks for it or has been gone too long; called about once a second."""
        if os.path.lexists(self.stem + REQUEST_SUFFIX):
            leave()
        elif is_agent_present(self.directory):
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
    identity_fields: Mapping[str, Any],
    max_overhead_ratio: float | None = None,
    unload: Callable[[], None] | None = None,
) -> Answer:
    """Start recording into ``directory``; called in a thread of the guest, which may block.

    ``identity_fields`` are fields of Identity that the agent knows. ``max_overhead_ratio`` is the
    budget, None for the current one. ``unload`` removes the guest's modules. "state" of the answer:

    - attached: the guest records for this agent; busy: for another one,
    - observed: the guest was loaded by the job, and stays,
    - skipped: there is nothing to record in this process.

    Any exception means that the attach failed and that the guest has left again.
    """
    guest.unload = unload or guest.unload
    if _is_data_loader_worker():
        _unload_modules()
        return _answer("skipped", message="a worker of a DataLoader")
    if recorder.current is not None:
        return _answer_if_recording(directory, agent_pid, grace_seconds, max_overhead_ratio)
    _wait_for_torch()
    was_armed = guest.state == "armed"
    try:
        guest.begin(directory, _identity_fields(identity_fields))
        _remove_last_note()
        writer = recorder.current
        if writer is None or was_armed:  # preloaded by `run`: it had nothing to record until now
            return _answer("observed", segment=writer.path if writer else "")
        writer.is_attached = True
        _begin_attachment(writer.path, directory, agent_pid, grace_seconds, max_overhead_ratio)
    except BaseException:
        leave()
        raise
    return _answer("attached", segment=writer.path)


def _begin_attachment(
    segment: str, directory: str, agent_pid: int, grace_seconds: float, ratio: float | None
) -> None:
    """Write the note for other agents, and start the thread that checks for the detach."""
    stem = segment.removesuffix(SUFFIX)
    attachment = _Attachment(
        directory, stem, agent_pid, grace_seconds, _set_budget(ratio), time.time()
    )
    guest.attachment = attachment
    _write_note(attachment)
    guest.watch()


def leave(*, nobody_reads: bool = False) -> None:
    """Stop recording and restore everything; the last hooks go at the job's next backward."""
    attachment: _Attachment | None = guest.attachment
    guest.attachment = None
    guest.last_attachment = attachment or guest.last_attachment
    guest.withdraw(_on_gone)
    if attachment is not None:
        _unlink(attachment.stem + REQUEST_SUFFIX)
        if nobody_reads:  # without this, the next agent would find the segment of a finished job
            for suffix in (SUFFIX, *SIDE_FILE_SUFFIXES):
                _unlink(attachment.stem + suffix)


def _on_gone() -> None:
    """Clean up, once no object of the job refers to the guest any more."""
    _unload_modules()
    _remove_last_note()


def _remove_last_note() -> None:
    attachment, guest.last_attachment = guest.last_attachment, None
    if attachment is not None:
        _unlink(attachment.stem + NOTE_SUFFIX)


def _unload_modules() -> None:
    if guest.unload is not None:
        guest.unload()


def _set_budget(ratio: float | None) -> float | None:
    """Set the guest's budget; return the one that is in force."""
    from dfx_agent.shim.torch import overhead  # noqa: PLC0415 (torch's side as well)

    overhead.allowed_ratio = ratio
    return variables.MAX_OVERHEAD.value() if ratio is None else ratio


def _answer_if_recording(
    directory: str, agent_pid: int, grace_seconds: float, max_overhead_ratio: float | None
) -> Answer:
    """Answer for a process that records already, for this agent, another one, or by itself."""
    writer, attachment = recorder.current, guest.attachment
    segment = writer.path if writer is not None else ""
    if attachment is None:
        return _answer("observed", segment=segment)
    if os.path.realpath(attachment.directory) != os.path.realpath(directory):
        since = time.strftime("%F %T", time.localtime(attachment.since_epoch_seconds))
        message = (
            f"dfx-agent pid {attachment.agent_pid} is attached to pid {os.getpid()} since {since} "
            f"(folder {attachment.directory})"
        )
        return _answer("busy", segment=segment, message=message)
    attachment.agent_pid, attachment.grace_seconds, attachment.alone_since_ns = (
        agent_pid,
        grace_seconds,
        None,
    )
    if max_overhead_ratio is not None:
        attachment.max_overhead_ratio = _set_budget(max_overhead_ratio)
    _write_note(attachment)
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


def _identity_fields(identity_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Identity fields from the agent, without those that this process knows better.

    The process knows its current environment (Ray and verl change it after the start) and its
    rank in torch.distributed.
    """
    own = identity.from_environment()
    given = {key: value for key, value in identity_fields.items() if value is not None}
    for name in _NUMBERS:
        if getattr(own, name) != UNKNOWN:
            given.pop(name, None)
    for name, variable in _NAMED_BY.items():
        if variable.value():
            given.pop(name, None)
    if own.rank == UNKNOWN:
        given |= _rank_in_group(given.get("role", ""))
    return given


def _rank_in_group(role: str) -> dict[str, Any]:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {}
    rank_fields = {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    return rank_fields | ({"role": "trainer"} if role in _WEAK_ROLES else {})


def _wait_for_torch() -> None:
    """Wait until a running import of torch is complete; before that, hooks miss their targets."""
    end = time.monotonic() + _IMPORT_SECONDS
    while _is_being_imported("torch") and time.monotonic() < end:
        time.sleep(0.05)


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _is_data_loader_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def is_agent_present(directory: str) -> bool:
    """Whether an agent holds its lock; True as well if the lock cannot be examined."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(os.path.join(directory, LOCK_NAME), flags)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # unlock explicitly: a child that was forked just now has this file open too
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _write_note(attachment: _Attachment) -> None:
    note = {
        "agent_pid": attachment.agent_pid,
        "since_epoch_seconds": attachment.since_epoch_seconds,
        "grace_seconds": attachment.grace_seconds,
        "max_overhead_ratio": attachment.max_overhead_ratio,
        "version": __version__,
    }
    path = attachment.stem + NOTE_SUFFIX
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
