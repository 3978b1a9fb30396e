"""What runs inside a job that an agent attaches to: sent as text, with the guest's files in it.

Run in a thread of its own (``guard``), where it may import and wait. It needs nothing installed and
leaves no file but the segment and the answer. Python 3.10 and newer.
"""

from __future__ import annotations

import binascii
import json
import marshal
import os
import sys
import time
import zlib
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = "dfx_agent"
_CLAIM = "_dfx_attach"
_CLAIM_SECONDS = 10.0
# compiling holds the GIL: after each module the job has it for a while
_BREATH_SECONDS = 0.005


def arrive(parcel: dict[str, Any]) -> None:
    """Bring the guest in; the answer is written to ``parcel["answer"]``."""
    try:
        answer = _one_at_a_time(parcel)
    except BaseException as error:  # noqa: BLE001 (never into the job)
        answer = {"state": "failed", "message": f"{type(error).__name__}: {error}"}
    try:
        _write(parcel["answer"], answer)
    except OSError:  # the agent waits no longer than it wants to
        return


def _one_at_a_time(parcel: dict[str, Any]) -> dict[str, Any]:
    """Two agents may come at the same moment: ``setdefault`` lets one of them in."""
    mine = ModuleType(_CLAIM)
    end = time.monotonic() + _CLAIM_SECONDS
    while sys.modules.setdefault(_CLAIM, mine) is not mine:
        if time.monotonic() > end:
            return {"state": "failed", "message": "another agent is attaching now: retry"}
        time.sleep(0.01)
    try:
        return _attach(parcel)
    finally:
        sys.modules.pop(_CLAIM, None)


def _attach(parcel: dict[str, Any]) -> dict[str, Any]:
    loaded = sys.modules.get(_PACKAGE)
    guest = None
    if loaded is None:
        guest = _Guest(_unpacked(parcel))
        guest.install()
    elif loaded.__version__ != parcel["version"]:
        return {
            "state": "refused",
            "message": f"dfx-agent {loaded.__version__} is loaded in this process and this agent "
            f"is {parcel['version']}: use that version, or restart the job",
        }
    try:
        attached: Any = __import__(f"{_PACKAGE}.shim.attached", fromlist=["attach"])
        unload = guest.unload if guest else None
        answer: dict[str, Any] = attached.attach(**parcel["arguments"], unload=unload)
    except BaseException:
        if guest:
            guest.unload()
        raise
    return answer


def _unpacked(parcel: dict[str, Any]) -> dict[str, str | bytes]:
    """Path -> marshalled code where the agent runs on this very interpreter, else source."""
    data = zlib.decompress(binascii.a2b_base64(parcel["guest"]))
    files: dict[str, str | bytes] = (marshal if parcel["is_compiled"] else json).loads(data)
    return files


def _write(path: str, answer: dict[str, Any]) -> None:
    """Whole or not at all: the agent looks for the file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(f"{path}.tmp", flags, 0o600)
    try:
        os.write(fd, json.dumps(answer).encode())
    finally:
        os.close(fd)
    os.rename(f"{path}.tmp", path)


class _Guest:
    """Imports the guest from memory: finder and loader of its modules."""

    def __init__(self, files: dict[str, str | bytes]) -> None:
        self._files = files

    def install(self) -> None:
        """In front: an installed dfx-agent, maybe another version, must not come in between."""
        sys.meta_path.insert(0, self)

    def unload(self) -> None:
        for name, module in list(sys.modules.items()):
            if getattr(getattr(module, "__spec__", None), "loader", None) is self:
                del sys.modules[name]
        # a new list: another thread may be half-way through the old one, and would skip a finder
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != _PACKAGE:
            return None
        path = self._file(name)
        if path is None:
            return None
        loader: Any = self  # of PEP 451, and no more of importlib.abc than that asks for
        return ModuleSpec(name, loader, is_package=path.endswith("/__init__.py"))

    def create_module(self, _spec: ModuleSpec) -> None:
        """A plain module."""

    def exec_module(self, module: ModuleType) -> None:
        path = self._file(module.__name__)
        assert path is not None
        file = self._files[path]
        if isinstance(file, str):
            code = compile(file, f"<attached>/{path}", "exec", dont_inherit=True)
            time.sleep(_BREATH_SECONDS)
        else:
            code = marshal.loads(file)  # noqa: S302 (the agent's own bytes)
        exec(code, module.__dict__)  # noqa: S102 (what a loader does)

    def get_source(self, name: str) -> str | None:
        path = self._file(name)
        source = None if path is None else self._files[path]
        return source if isinstance(source, str) else None

    def module_names(self, package: str) -> list[str]:
        """Modules right inside ``package``: the guest asks, where its folder is its registry."""
        folder = package.replace(".", "/") + "/"
        inside = [path[len(folder) : -3] for path in self._files if path.startswith(folder)]
        return [name for name in inside if "/" not in name and name != "__init__"]

    def _file(self, name: str) -> str | None:
        stem = name.replace(".", "/")
        files = (f"{stem}.py", f"{stem}/__init__.py")
        return next((path for path in files if path in self._files), None)
