"""Adapters: which functions of a framework are which stage, and where its metrics pass through.

One file per framework or tracker; the folder is the registry. The file name is the module whose
import wakes it, with "__" for "." (``verl.py``, ``torch__utils__tensorboard.py``); it is imported
then and not before. A file has

- ``PARTS``: part -> (module whose import triggers it, function that patches it). Each part has a
  PatchSet "<framework>.<part>" of its own; it is absent where the installed version has nothing to
  patch, and both are reported.
- ``FRAMEWORK`` (optional): its name in ``catalogue/native``, where that is not the package's.
- ``KIND`` (optional): "framework", "library" (others are built on it: the name of such a one wins),
  "tracker" or "launcher" (say nothing about who trains). "framework" where it is not given.

Nothing here raises into the job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import ModuleType

from dfx_agent.shim import compiling, imports, recorder
from dfx_agent.shim.patches import PatchSet

Patch = Callable[[PatchSet, ModuleType], None]

_STATES = {"active": 1.0, "absent": 0.0, "off": 0.0, "failed": -1.0}
# of an adapter whose own file cannot be loaded
_LOAD = "load"

_adapters: dict[str, _Adapter] = {}
_quiet: ContextVar[bool] = ContextVar("dfx_quiet_trackers", default=False)


def install() -> None:
    """Wake each adapter when its framework is imported, at once where it is already."""
    for stem in _stems():
        adapter = _adapters.get(stem)
        if adapter is None:
            adapter = _adapters[stem] = _Adapter(stem)
        imports.when_imported(adapter.name, adapter.wake)


def wake(name: str) -> None:
    """Wake one adapter now: its framework is being imported, and is our caller."""
    _adapters[name.replace(".", "__")].wake()


def report(writer: recorder.Recorder) -> None:
    """Tell a new recorder which framework this is, and the state of every part."""
    _name_framework(writer)
    for adapter in _adapters.values():
        adapter.report(writer)


def has_framework() -> bool:
    """Whether a framework that marks its own stages is loaded."""
    return any(adapter.kind in {"framework", "library"} for adapter in _adapters.values())


def trackers_are_quiet() -> bool:
    """Asked by tracker hooks: the adapter of a framework records what passes through now."""
    return _quiet.get()


@contextmanager
def quiet_trackers() -> Iterator[None]:
    """Around a framework's own metric function: what it hands to trackers is recorded already."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that its event loop left open is closed elsewhere
            _quiet.reset(token)


class _Adapter:
    """One file of this folder, and what became of it in this process."""

    def __init__(self, stem: str) -> None:
        self.name = stem.replace("__", ".")
        self.kind = ""  # until it wakes
        self.framework = self.name
        self._stem = stem
        self._version = ""
        self._hooks: dict[str, PatchSet] = {}
        self._installs: dict[str, Callable[[], None]] = {}
        self._has_failed = False
        # the same object each time: ``when_imported`` takes it once
        self.wake: Callable[[], None] = partial(_Adapter._wake, self)

    def _wake(self) -> None:
        """Its framework is there: load the file, and wait for the module of each part."""
        try:
            file = __import__(f"{__name__}.{self._stem}", fromlist=["PARTS"])
            self._version = _version(self.name)
            self.kind = getattr(file, "KIND", "framework")
            self.framework = getattr(file, "FRAMEWORK", self.name)
            for part, (trigger, change) in file.PARTS.items():
                if part not in self._hooks:
                    hook = self._hooks[part] = PatchSet(f"{self.name}.{part}")
                    self._installs[part] = partial(self._install, hook, trigger, change)
                if trigger == self.name:  # its own code has just run
                    self._installs[part]()
                else:
                    imports.when_imported(trigger, self._installs[part])
            compiling.keep_guest_out()
        except Exception:  # noqa: BLE001 (never into the job)
            self._has_failed = True
            _count_error()
        writer = recorder.current
        if writer is not None:
            _name_framework(writer)
            self.report(writer)

    def _install(self, hook: PatchSet, trigger: str, change: Patch) -> None:
        hook.install(lambda patches: change(patches, sys.modules[trigger]))
        hook.switch.on_first = self._report_first
        writer = recorder.current
        if writer is not None:
            self.report(writer)

    def _report_first(self) -> None:
        """Something came through a part for the first time."""
        if recorder.current is not None:
            self.report(recorder.current)

    def report(self, writer: recorder.Recorder) -> None:
        """One gauge per part: 1 installed, 0 absent or off, -1 failed; one more once it delivered.

        Installed is not yet observed: a version may call something else than what was patched.
        """
        for part, hook in self._hooks.items():
            name = f"{self.name}/{part}/{self._version}"
            writer.gauge(f"adapter/{name}", _STATES[hook.state])
            if hook.switch.has_seen:
                writer.gauge(f"delivered/{name}", 1.0)
        if self._has_failed:
            writer.gauge(f"adapter/{self.name}/{_LOAD}/{self._version}", _STATES["failed"])


def _name_framework(writer: recorder.Recorder) -> None:
    """What the job or its launcher said stays; a framework replaces a library it is built on."""
    libraries = [known.framework for known in _adapters.values() if known.kind == "library"]
    frameworks = [known.framework for known in _adapters.values() if known.kind == "framework"]
    found = next(iter(frameworks or libraries), "")
    known = writer.identity.framework
    if found not in ("", known) and (not known or known in libraries):
        writer.update_identity({"framework": found})


def _stems() -> list[str]:
    """Files of this folder that are adapters; what begins with "_" is shared by them."""
    return sorted(name for name in _module_names() if not name.startswith("_"))


def _module_names() -> list[str]:
    listed = getattr(getattr(__spec__, "loader", None), "module_names", None)
    if listed is not None:  # the guest came by attach and is in memory
        return list(listed(__name__))
    try:
        files = os.listdir(__path__[0])
    except OSError:
        import pkgutil  # noqa: PLC0415 (17 ms, for a guest in a zip only)

        return [module.name for module in pkgutil.iter_modules(__path__)]
    return [file[:-3] for file in files if file.endswith(".py")]


def _version(name: str) -> str:
    """Of the package; "" where it does not say."""
    top = name.partition(".")[0]
    version = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(version, str):
        return version
    from importlib import metadata  # noqa: PLC0415 (slow, and seldom needed)

    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        return ""


def _count_error() -> None:
    if recorder.current is not None:
        recorder.current.count_error()
