"""The text that brings the guest into a running process, and the answer that comes back.

The text carries the guest's files, so nothing must be installed in the target, and its own loader,
so nothing is written there. The answer is a file in the folder of segments.
"""

from __future__ import annotations

import base64
import functools
import json
import marshal
import os
import stat
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from dfx_agent.attach.payload import guest_files

_ANSWER_SUFFIX = ".answer"
_MAX_ANSWER_BYTES = 1 << 16
_POLL_SECONDS = 0.005
# the folder may be another user's: no link is followed, no pipe waited for
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_ROOT = Path(__file__).resolve().parents[2]
# a tenth of what 9 takes, for a text that is an eighth longer
_COMPRESSION = 1


@dataclass(frozen=True)
class Answer:
    """What the guest said.

    ``state`` is attached, observed (it was there already, and stays), busy (with another agent's
    folder), skipped (nothing to see there), refused or failed. ``segment`` is the file's path as
    the target sees it, "" when there is none.
    """

    state: str
    segment: str = ""
    message: str = ""
    python: str = ""


class Order:
    """One attempt to bring the guest into one process.

    ``directory`` is the folder of segments as the target sees it, ``seen_directory`` as we do.
    ``known`` holds fields of wire.Identity that were found out from outside. ``max_overhead_ratio``
    is the guest's budget, None: as the job has it. ``is_compiled`` is for
    a target that runs the same interpreter as we do: compiling there holds its GIL.
    """

    def __init__(
        self,
        directory: str,
        seen_directory: str,
        *,
        version: str,
        known: Mapping[str, Any],
        grace_seconds: float,
        max_overhead_ratio: float | None = None,
        is_compiled: bool = False,
    ) -> None:
        name = f"{os.urandom(8).hex()}{_ANSWER_SUFFIX}"
        self._answer = os.path.join(seen_directory, name)
        self._parcel = {
            "answer": os.path.join(directory, name),
            "version": version,
            "guest": _packed_guest(is_compiled=is_compiled),
            "is_compiled": is_compiled,
            "arguments": {
                "directory": directory,
                "agent_pid": os.getpid(),
                "grace_seconds": grace_seconds,
                "max_overhead_ratio": max_overhead_ratio,
                "known": dict(known),
            },
        }

    @property
    def source(self) -> str:
        """Python text for the target; run it with globals of its own, in any thread."""
        return f"{_arrival()}\n\narrive({self._parcel!r})\n"

    def answer(self, timeout_seconds: float) -> Answer | None:
        """The guest's answer, None if there is none in time; it may still come."""
        end = time.monotonic() + timeout_seconds
        while (answer := self._read()) is None and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        return answer

    def _read(self) -> Answer | None:
        try:
            fd = os.open(self._answer, _READ)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return Answer("failed", message="its answer is no file")
            fields = json.loads(os.read(fd, _MAX_ANSWER_BYTES))
            names = ("state", "segment", "message", "python")
            return Answer(**{name: str(fields.get(name, "")) for name in names})
        except (ValueError, AttributeError):
            return Answer("failed", message="its answer cannot be read")
        finally:
            os.close(fd)
            os.unlink(self._answer)


@functools.cache
def _arrival() -> str:
    return Path(__file__).with_name("arrival.py").read_text(encoding="utf-8")


def runs_our_interpreter(pid: int) -> bool:
    """Whether this process runs the file that we run, so that our compiled code is its own."""
    try:
        return os.path.samefile(f"/proc/{pid}/exe", "/proc/self/exe")
    except OSError:
        return False


def prepare_guest(*, is_compiled: bool) -> None:
    """Pack the files that every ``Order`` carries, before threads with a target each need them."""
    _packed_guest(is_compiled=is_compiled)


@functools.cache
def _packed_guest(*, is_compiled: bool) -> str:
    sources = guest_files()
    if is_compiled:
        data = marshal.dumps({path: marshal.dumps(_compiled(path)) for path in sources})
    else:
        data = json.dumps({path: source.decode() for path, source in sources.items()}).encode()
    return base64.b64encode(zlib.compress(data, _COMPRESSION)).decode()


def _compiled(path: str) -> CodeType:
    """Code of one of our files, from the interpreter's cache where it keeps one."""
    name = path.removesuffix(".py").replace("/", ".")
    code = SourceFileLoader(name, os.path.join(_ROOT, path)).get_code(name)
    assert code is not None
    return _as_attached(code, f"<attached>/{path}")


def _as_attached(code: CodeType, file: str) -> CodeType:
    """The agent's paths mean nothing in the target, or other files."""
    constants = tuple(
        _as_attached(constant, file) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=file, co_consts=constants)


def remove_leftovers(directory: str, suffixes: tuple[str, ...]) -> None:
    """Files beside segments that are gone, and answers that nobody waited for."""
    try:
        folder = os.open(directory, _READ | os.O_DIRECTORY)
    except OSError:
        return
    try:
        names = set(os.listdir(folder))
        for name in names:
            stem, suffix = os.path.splitext(name)
            is_left = suffix in suffixes and f"{stem}.seg" not in names
            if is_left or (suffix == _ANSWER_SUFFIX and _age_seconds(folder, name) > 600):
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)


def _age_seconds(folder: int, name: str) -> float:
    try:
        return time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0
