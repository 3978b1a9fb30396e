"""One process, opened for injection after the checks that all routes need."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dfx_agent.attach import access, procfs, refusals
from dfx_agent.attach.elf import ElfError, Image, machine_of
from dfx_agent.attach.hijack import Machine, own_machine
from dfx_agent.attach.procfs import Mapping, TargetMemory
from dfx_agent.base.errors import AttachError

_LIBPYTHON = re.compile(r"libpython\d\.\d+[a-z]*\.so")
_LIBC = re.compile(r"libc(-2\.\d+)?\.so")
_LIBPTHREAD = re.compile(r"libpthread(-2\.\d+)?\.so")  # its own library before glibc 2.34
_MUSL = re.compile(r"(ld-musl-|libc\.musl-)")

# `initialized` in struct pyruntimestate; from 3.13 the debug offsets lead to it.
_INITIALIZED_AT = {(3, 10): 12, (3, 11): 16, (3, 12): 16}
_COOKIE = b"xdebugpy"
_FREE_THREADED_AT, _FINALIZING_AT = 16, 32
_INITIALIZED_BEFORE_FINALIZING = 8
_OLDEST = (3, 10)
_GONE = (errno.ENOENT, errno.ESRCH, errno.EIO)  # EIO: its memory no longer exists


class Target(NamedTuple):
    """A running CPython 3.10 or newer with glibc that the agent may read and write."""

    pid: int
    executable: str
    status: procfs.Status
    memory: TargetMemory
    maps: Sequence[Mapping]
    machine: Machine
    runtime: Runtime
    libc: Sequence[Image]


@contextmanager
def open_target(pid: int) -> Iterator[Target]:
    """Open a process without changing it. Raises AttachError if no route could work."""
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


def _open_memory(pid: int) -> TargetMemory:
    try:
        return TargetMemory(pid)
    except PermissionError:
        raise access.refusal(pid, access.read_facts(pid)) from None


def _examine(pid: int, status: procfs.Status, memory: TargetMemory) -> Target:
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


def _machine_of_program(memory: TargetMemory, maps: Sequence[Mapping], executable: str) -> str:
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
    """Why the process now refuses what it has allowed a moment ago."""
    try:
        with open_target(pid):
            return refusals.left_its_call(pid)
    except AttachError as error:
        return error


class Runtime(NamedTuple):
    """The CPython runtime of a process."""

    image: Image
    address: int
    """Address of ``_PyRuntime``; 0 before 3.7."""
    version: tuple[int, int, int | None]
    """(major, minor, micro); micro is None in 3.10, and older versions read as (3, 9, None)."""
    is_free_threaded: bool
    is_initialized: bool

    @property
    def version_text(self) -> str:
        return ".".join(str(part) for part in self.version if part is not None)


def find_runtime(memory: TargetMemory, maps: Sequence[Mapping], executable: str) -> Runtime | None:
    """The CPython of the process, in a library or in the program itself; None if there is none.

    Raises ElfError if the program is static, 32-bit, or otherwise without symbols.
    """
    bases = image_bases(maps)
    libraries = [p for p in bases if _LIBPYTHON.match(os.path.basename(p))]
    for path in [*libraries, executable]:
        if path not in bases:
            continue
        image = Image(memory, bases[path])
        if image.symbol("Py_AddPendingCall") is not None:
            return _describe(memory, image, image.symbol("_PyRuntime") or 0)
    return None


def _describe(memory: TargetMemory, image: Image, address: int) -> Runtime:
    version = _version(memory, image)
    is_free_threaded = False
    initialized_at = _INITIALIZED_AT.get(version[:2])
    if address and memory.read(address, 8) == _COOKIE:
        is_free_threaded = memory.word(address + _FREE_THREADED_AT) != 0
        initialized_at = memory.word(address + _FINALIZING_AT) - _INITIALIZED_BEFORE_FINALIZING
    is_initialized = initialized_at is not None and memory.int32(address + initialized_at) == 1
    return Runtime(image, address, version, is_free_threaded, is_initialized)


def _version(memory: TargetMemory, image: Image) -> tuple[int, int, int | None]:
    """Read the variable ``Py_Version`` (3.11 and newer), else test functions that 3.10 added."""
    at = image.symbol("Py_Version")
    if at is not None:
        packed = memory.word(at)
        return packed >> 24 & 0xFF, packed >> 16 & 0xFF, packed >> 8 & 0xFF
    return 3, 10 if image.symbol("PyModule_AddObjectRef") is not None else 9, None


def image_bases(maps: Sequence[Mapping]) -> dict[str, int]:
    """Path -> address of its first bytes, for every mapped file."""
    bases: dict[str, int] = {}
    for mapping in maps:
        if mapping.offset == 0 and mapping.path.startswith("/"):
            bases.setdefault(mapping.path, mapping.start)
    return bases


def libc_images(memory: TargetMemory, maps: Sequence[Mapping]) -> list[Image]:
    """glibc, and libpthread if that is a separate library; empty if there is no glibc."""
    bases = image_bases(maps)
    names = {path: os.path.basename(path) for path in bases}
    wanted = [p for p, name in names.items() if _LIBC.match(name) or _LIBPTHREAD.match(name)]
    return [Image(memory, bases[path]) for path in wanted]


def has_musl(maps: Sequence[Mapping]) -> bool:
    return any(_MUSL.match(os.path.basename(mapping.path)) for mapping in maps)
