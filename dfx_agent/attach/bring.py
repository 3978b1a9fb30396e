"""The text that loads the guest into a running process, and the answer of the guest.

The text contains the guest's files and a loader, so nothing must be installed or written in the
target. The answer is a file in the folder of segments.
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
# the folder may belong to another user: do not follow links or wait for pipes
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_ROOT = Path(__file__).resolve().parents[2]
# level 1 takes a tenth of the time of level 9, for a text that is an eighth longer
_COMPRESSION = 1


@dataclass(frozen=True)
class AttachAnswer:
    """The guest's answer to an attach."""

    state: str
    """One of

    - attached: the guest records,
    - observed: the guest was loaded by the job, and stays,
    - busy: the guest records into the folder of another agent,
    - skipped: there is nothing to record in this process,
    - refused, failed.
    """
    segment: str = ""
    """Path of the segment as the target sees it; "" if there is none."""
    message: str = ""
    python: str = ""
    """Version of the target's Python."""


class Order:
    """One attempt to load the guest into one process.

    ``directory`` is the folder of segments as the target sees it, ``seen_directory`` as the agent
    sees it. ``identity_fields`` are fields of wire.Identity that the agent found out.
    ``max_overhead_ratio`` is the guest's budget; None means that of the job. ``is_compiled`` sends
    compiled code to a target with the same interpreter, because compiling there holds the GIL.
    """

    def __init__(
        self,
        directory: str,
        seen_directory: str,
        *,
        version: str,
        identity_fields: Mapping[str, Any],
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
                "identity_fields": dict(identity_fields),
            },
        }

    @property
    def source(self) -> str:
        """Python text for the target; run it with its own globals, in any thread."""
        return f"{_arrival()}\n\narrive({self._parcel!r})\n"

    def answer(self, timeout_seconds: float) -> AttachAnswer | None:
        """The guest's answer; None if there is none in time, although it may still come."""
        end = time.monotonic() + timeout_seconds
        while (answer := self._read()) is None and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        return answer

    def _read(self) -> AttachAnswer | None:
        try:
            fd = os.open(self._answer, _READ)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return AttachAnswer("failed", message="its answer is no file")
            fields = json.loads(os.read(fd, _MAX_ANSWER_BYTES))
            names = ("state", "segment", "message", "python")
            return AttachAnswer(**{name: str(fields.get(name, "")) for name in names})
        except (ValueError, AttributeError):
            return AttachAnswer("failed", message="its answer cannot be read")
        finally:
            os.close(fd)
            os.unlink(self._answer)


@functools.cache
def _arrival() -> str:
    return Path(__file__).with_name("arrival.py").read_text(encoding="utf-8")


def runs_our_interpreter(pid: int) -> bool:
    """Whether this process runs the same interpreter as the agent, so that code can be shared."""
    try:
        return os.path.samefile(f"/proc/{pid}/exe", "/proc/self/exe")
    except OSError:
        return False


def prepare_guest(*, is_compiled: bool) -> None:
    """Pack the files that every ``Order`` contains, before several threads need them."""
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
    """Code of one of the guest's files, from the interpreter's cache if possible."""
    name = path.removesuffix(".py").replace("/", ".")
    code = SourceFileLoader(name, os.path.join(_ROOT, path)).get_code(name)
    assert code is not None
    return _as_attached(code, f"<attached>/{path}")


def _as_attached(code: CodeType, file: str) -> CodeType:
    """Replace the agent's paths, which mean nothing in the target."""
    constants = tuple(
        _as_attached(constant, file) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=file, co_consts=constants)


def remove_leftovers(directory: str, suffixes: tuple[str, ...]) -> None:
    """Remove files next to segments that no longer exist, and old answers."""
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
