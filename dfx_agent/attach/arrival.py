"""Code that runs inside a job that an agent attaches to: sent as text, with the guest's files.

It runs in a thread of its own (``guard``), in which it may import and block. It needs nothing
installed and leaves no files but the segment and the answer. Python 3.10 and newer.
"""

from __future__ import annotations

import binascii
import builtins
import json
import marshal
import os
import sys
import threading
import time
import zlib
from importlib.machinery import BuiltinImporter, ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

_PACKAGE = "dfx_agent"
# keys in the attribute of ``os`` that remains (see shim/permanent_state.py)
_RESIDUE, _CLAIM, _GUEST = "_dfx_residue", "claim", "guest"
_CLAIM_SECONDS = 10.0
# compiling holds the GIL, so the job gets a pause after each module
_PAUSE_SECONDS = 0.005


def arrive(parcel: dict[str, Any]) -> None:
    """Load and start the guest; write the answer to ``parcel["answer"]``."""
    try:
        answer = _one_at_a_time(parcel)
    except BaseException as error:  # noqa: BLE001 (never into the job)
        answer = {"state": "failed", "message": f"{type(error).__name__}: {error}"}
    try:
        _write(parcel["answer"], answer)
    except OSError:  # the agent does not wait forever
        return


def _one_at_a_time(parcel: dict[str, Any]) -> dict[str, Any]:
    """Attach unless another agent does so now; ``setdefault`` lets one of two agents through."""
    residue: dict[str, Any] = vars(os).setdefault(_RESIDUE, {})
    mine = object()
    end = time.monotonic() + _CLAIM_SECONDS
    while residue.setdefault(_CLAIM, mine) is not mine:
        if time.monotonic() > end:
            return {"state": "failed", "message": "another agent is attaching now: retry"}
        time.sleep(0.01)
    try:
        return _attach(parcel, residue)
    finally:
        residue.pop(_CLAIM, None)


def _attach(parcel: dict[str, Any], residue: dict[str, Any]) -> dict[str, Any]:
    """Use the active guest (attached, or imported by the job), else load one.

    A detached guest with the same files is reused, so that its memory is allocated only once.
    """
    stored: Any = residue.get(_GUEST)
    is_active = stored is not None and stored.is_active
    loaded = stored.modules.get(_PACKAGE) if is_active else sys.modules.get(_PACKAGE)
    if loaded is not None and loaded.__version__ != parcel["version"]:
        return {
            "state": "refused",
            "message": f"dfx-agent {loaded.__version__} is loaded in this process and this agent "
            f"is {parcel['version']}: use that version, or restart the job",
        }
    guest: Any = None
    if loaded is None:
        is_same = stored is not None and stored.checksum == _checksum(parcel)
        guest = residue[_GUEST] = stored if is_same else _GuestModules(parcel)
        guest.activate()
    active = guest or (stored if is_active else None)
    load = active.load if active else _load_installed
    try:
        attached = load(f"{_PACKAGE}.shim.attached")
        unload = guest.unload if guest else None
        answer: dict[str, Any] = attached.attach(**parcel["arguments"], unload=unload)
    except BaseException:
        if guest:
            guest.unload()
        raise
    return answer


def _checksum(parcel: dict[str, Any]) -> int:
    return zlib.crc32(parcel["guest"].encode())


def _load_installed(name: str) -> Any:
    return __import__(name, fromlist=["attach"])


def _unpacked(parcel: dict[str, Any]) -> dict[str, str | bytes]:
    """Path -> marshalled code if the agent runs on this very interpreter, else source."""
    data = zlib.decompress(binascii.a2b_base64(parcel["guest"]))
    files: dict[str, str | bytes] = (marshal if parcel["is_compiled"] else json).loads(data)
    return files


def _write(path: str, answer: dict[str, Any]) -> None:
    """Write the complete file or none, because the agent polls for it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(f"{path}.tmp", flags, 0o600)
    try:
        os.write(fd, json.dumps(answer).encode())
    finally:
        os.close(fd)
    os.rename(f"{path}.tmp", path)


class _GuestModules:
    """The guest's modules, in a private table: the job's ``sys.modules`` does not change.

    The job may iterate over ``sys.modules`` right now; changing it would raise an exception there.
    Every module of the guest has the ``__import__`` of this table in its builtins. If the job
    itself imports ``dfx_agent``, ``find_spec`` returns these modules.
    """

    def __init__(self, parcel: dict[str, Any]) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.checksum, self._files = _checksum(parcel), _unpacked(parcel)
        self.is_active = False
        self._builtins = {**vars(builtins), "__import__": self._import}
        self._own_built_in: dict[str, ModuleType] = {}
        self.renew_lock()

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held the old one."""
        self._lock = threading.RLock()

    def activate(self) -> None:
        """Insert this finder first, before an installed dfx-agent of another version."""
        # a new list: another thread may iterate over the old one
        sys.meta_path = [self, *sys.meta_path]
        self.is_active = True

    def unload(self) -> None:
        """Remove everything but this table, which the next attach reuses."""
        self.is_active = False
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        for name, module in list(self.modules.items()):
            if sys.modules.get(name) is module:  # the job had imported it
                del sys.modules[name]

    def load(self, name: str) -> ModuleType:
        """Load the module of this name, after its parent packages."""
        module = self.modules.get(name)
        if module is not None:
            return module
        with self._lock:
            package, _, child = name.rpartition(".")
            parent = self.load(package) if package else None
            return self.modules.get(name) or self._load_into(parent, name, child)

    def _load_into(self, parent: ModuleType | None, name: str, child: str) -> ModuleType:
        spec = self._spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = self.modules[name] = module_from_spec(spec)
        if parent is not None:
            setattr(parent, child, module)
        try:
            self._execute(module)
        except BaseException:
            del self.modules[name]
            raise
        return module

    def _import(
        self, name: str, scope: Any = None, local: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        """``__import__`` of the guest's modules, which use no relative imports."""
        if level or name.partition(".")[0] != _PACKAGE:
            module = self._built_in(name)
            return module or builtins.__import__(name, scope, local, fromlist, level)
        module = self.load(name)
        if not fromlist:
            return self.modules[_PACKAGE]
        for child in fromlist:
            if not hasattr(module, child):
                self.load(f"{name}.{child}")
        return module

    def _built_in(self, name: str) -> ModuleType | None:
        """A module of the interpreter that the job has not loaded (``faulthandler``), or None."""
        if name in sys.modules or name not in sys.builtin_module_names:
            return None
        if name not in self._own_built_in:
            spec = BuiltinImporter.find_spec(name)
            assert spec is not None
            module = self._own_built_in[name] = module_from_spec(spec)
            BuiltinImporter.exec_module(module)
        return self._own_built_in[name]

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Find a module for an import of the job itself."""
        return self._spec(name) if name.partition(".")[0] == _PACKAGE else None

    def _spec(self, name: str) -> ModuleSpec | None:
        path = self._file(name)
        if path is None:
            return None
        loader: Any = self  # of PEP 451, which needs only a part of importlib.abc
        return ModuleSpec(name, loader, is_package=path.endswith("/__init__.py"))

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The guest's module if the job imports it; else None for a plain module."""
        return self.modules.get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module that the job imports, unless this table has done so already."""
        with self._lock:
            if self.modules.get(module.__name__) is not module:
                self.modules[module.__name__] = module
                self._execute(module)

    def _execute(self, module: ModuleType) -> None:
        path = self._file(module.__name__)
        assert path is not None
        file = self._files[path]
        if isinstance(file, str):
            code = compile(file, f"<attached>/{path}", "exec", dont_inherit=True)
            time.sleep(_PAUSE_SECONDS)
        else:
            code = marshal.loads(file)  # noqa: S302 (the agent's own bytes)
        vars(module)["__builtins__"] = self._builtins
        exec(code, vars(module))  # noqa: S102 (what a loader does)

    def get_source(self, name: str) -> str | None:
        path = self._file(name)
        source = None if path is None else self._files[path]
        return source if isinstance(source, str) else None

    def module_names(self, package: str) -> list[str]:
        """Modules directly in ``package``, for a guest whose folder is its registry."""
        folder = package.replace(".", "/") + "/"
        inside = [path[len(folder) : -3] for path in self._files if path.startswith(folder)]
        return [name for name in inside if "/" not in name and name != "__init__"]

    def _file(self, name: str) -> str | None:
        stem = name.replace(".", "/")
        files = (f"{stem}.py", f"{stem}/__init__.py")
        return next((path for path in files if path in self._files), None)
