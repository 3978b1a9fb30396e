"""Symbols of this very process, compared with what the dynamic loader says."""

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

from dfx_agent.attach import elf, procfs
from dfx_agent.attach.target import find_runtime, has_musl, image_bases, libc_images

OWN = os.getpid()


@pytest.fixture
def memory():
    with procfs.TargetMemory(OWN) as memory:
        yield memory


def images_named(memory, *names: str) -> list[elf.Image]:
    bases = image_bases(procfs.mappings(OWN))
    found = [p for p in bases if os.path.basename(p).startswith(names)]
    return [elf.Image(memory, bases[path]) for path in found]


@pytest.mark.parametrize(
    "name", ["mmap", "mprotect", "munmap", "pthread_create", "pthread_self", "pthread_detach"]
)
def test_libc_functions_are_where_the_loader_says(memory, name):
    expected = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    found = [image.symbol(name) for image in libc_images(memory, procfs.mappings(OWN))]
    assert expected in found


@pytest.mark.parametrize("name", ["PyRun_SimpleString", "Py_AddPendingCall", "PyGILState_Ensure"])
def test_python_functions_are_where_the_loader_says(memory, name):
    runtime = find_runtime(memory, procfs.mappings(OWN), procfs.executable(OWN))
    assert (
        runtime.image.symbol(name)
        == ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    )


def test_what_an_image_does_not_define_is_none(memory):
    for image in images_named(memory, "libc.so", "libc-2", "libm.so"):
        assert image.symbol("PyRun_SimpleString") is None
        assert image.symbol("") is None
        assert image.symbol("no_such_function_anywhere") is None


def test_the_machine_is_ours(memory):
    assert {image.machine for image in images_named(memory, "libc.so", "libc-2")} == {
        os.uname().machine
    }


def test_what_is_no_elf_is_said(memory):
    held = ctypes.create_string_buffer(b"#!/bin/sh\n", 4096)
    with pytest.raises(elf.ElfError, match="not ELF"):
        elf.Image(memory, ctypes.addressof(held))


def test_the_own_python_is_described(memory):
    runtime = find_runtime(memory, procfs.mappings(OWN), procfs.executable(OWN))
    assert runtime.version[:2] == sys.version_info[:2]
    assert runtime.version[2] in {None, sys.version_info.micro}
    assert runtime.is_initialized
    assert not runtime.is_free_threaded
    assert not has_musl(procfs.mappings(OWN))


def test_a_program_without_python_has_no_runtime():
    process = subprocess.Popen([shutil.which("sleep"), "60"])
    try:
        with procfs.TargetMemory(process.pid) as memory:
            maps, program = procfs.mappings(process.pid), procfs.executable(process.pid)
            assert find_runtime(memory, maps, program) is None
    finally:
        process.kill()
        process.wait()
