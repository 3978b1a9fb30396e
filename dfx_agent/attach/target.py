"""One process, opened for injection after every check that holds for all routes."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dfx_agent.attach import access, procfs, refusals
from dfx_agent.attach.elf import ElfError, Image, machine_of
from dfx_agent.attach.hijack import Machine, own_machine
from dfx_agent.attach.procfs import Mapping, Memory
from dfx_agent.attach.runtime import Runtime, find_runtime, has_musl, image_bases, libc_images
from dfx_agent.errors import AttachError

_OLDEST = (3, 10)
_GONE = (errno.ENOENT, errno.ESRCH, errno.EIO)  # EIO: its memory is no longer there


class Target(NamedTuple):
    """A running CPython 3.10 or newer with glibc that we may read and write."""

    pid: int
    executable: str
    status: procfs.Status
    memory: Memory
    maps: Sequence[Mapping]
    machine: Machine
    runtime: Runtime
    libc: Sequence[Image]


@contextmanager
def open_target(pid: int) -> Iterator[Target]:
    """AttachError when the process cannot be attached to by any route; changes nothing in it."""
    try:
        status = procfs.status(pid)
    except OSError:
        raise refusals.no_process(pid) from None
    _check_state(pid, status)
    try:
        if procfs.is_kernel_thread(pid):
            raise refusals.not_python(pid, f"[{status.name}]")
        with _open_memory(pid) as memory:
            yield _examine(pid, status, memory)
    except OSError as error:
        if error.errno in _GONE:
            raise refusals.gone(pid) from None
        raise


def _check_state(pid: int, status: procfs.Status) -> None:
    if status.state in "ZX":
        raise refusals.zombie(pid)
    if status.tracer_pid:
        raise refusals.traced(pid, status.tracer_pid)
    if status.state in "Tt":
        raise refusals.stopped(pid, status.state)


def _open_memory(pid: int) -> Memory:
    try:
        return Memory(pid)
    except PermissionError:
        raise access.refusal(pid, access.facts(pid)) from None


def _examine(pid: int, status: procfs.Status, memory: Memory) -> Target:
    executable = procfs.executable(pid)
    maps = procfs.mappings(pid)
    if not maps:
        raise refusals.gone(pid)
    machine = own_machine()
    try:
        runtime = find_runtime(memory, maps, executable)
        libc = libc_images(memory, maps)
    except ElfError as error:
        raise refusals.cannot_inject(
            executable, _machine_of_program(memory, maps, executable), str(error)
        ) from None
    if runtime is None:
        raise refusals.not_python(pid, executable)
    _check_runtime(pid, runtime)
    if machine is None or runtime.image.machine != machine.name:
        raise refusals.cannot_inject(executable, runtime.image.machine, "no code for it")
    if not libc:
        why = "musl" if has_musl(maps) else "no glibc"
        raise refusals.cannot_inject(executable, machine.name, why)
    return Target(pid, executable, status, memory, maps, machine, runtime, libc)


def _machine_of_program(memory: Memory, maps: Sequence[Mapping], executable: str) -> str:
    base = image_bases(maps).get(executable)
    return "an unknown processor" if base is None else machine_of(memory.read(base, 64))


def _check_runtime(pid: int, runtime: Runtime) -> None:
    if runtime.version[:2] < _OLDEST:
        raise refusals.too_old(pid, runtime.version_text)
    if runtime.is_free_threaded:
        raise refusals.free_threaded(pid, runtime.version_text)
    if not runtime.is_initialized:
        raise refusals.starting(pid)


def refusal_of(pid: int) -> AttachError:
    """Why the process refuses now what it allowed a moment ago."""
    try:
        with open_target(pid):
            return refusals.left_its_call(pid)
    except AttachError as error:
        return error
