"""Adapters: which functions of a framework are which stage, and how its metrics are read.

There is one file per framework or tracker; the folder is the registry. The file name is the module
whose import activates the adapter, with "__" for "." (``verl.py``,
``torch__utils__tensorboard.py``). The file is imported then and not before. It defines

- ``PARTS``: part -> (module whose import triggers the part, function that patches the module). Each
  part has its own PatchSet "<framework>.<part>". A part is "absent" if the installed version has
  nothing to patch; the states of all parts are reported.
- ``FRAMEWORK`` (optional): its name in ``catalogue/native``, if that is not the module's.
- ``KIND`` (optional): "framework" (the default), "library" (frameworks are built on it, and their
  name takes precedence), "trainer" (a general training loop: many jobs import it and do not use it,
  so it is reported and names the framework from its first use on, unless another one does),
  "tracker" or "launcher" (which do not name the framework).

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
# part -> (module whose import triggers the part, function that patches the module)
Parts = dict[str, tuple[str, Patch]]

# kinds that name the framework; the first takes precedence
_NAMING = ("framework", "library", "trainer")
_STATES = {"active": 1.0, "absent": 0.0, "off": 0.0, "failed": -1.0}
# name of the part that is reported if the file of an adapter cannot be loaded
_LOAD = "load"

_adapters: dict[str, _FrameworkAdapter] = {}
_quiet: ContextVar[bool] = ContextVar("dfx_quiet_trackers", default=False)


def install() -> None:
    """Activate each adapter when its framework is imported, or now if it already is."""
    for stem in _stems():
        adapter = _adapters.get(stem)
        if adapter is None:
            adapter = _adapters[stem] = _FrameworkAdapter(stem)
        imports.when_imported(adapter.name, adapter.wake)


def wake(name: str) -> None:
    """Activate one adapter now, because its framework is importing the guest right now."""
    _adapters[name.replace(".", "__")].wake()


def report(writer: recorder.Recorder) -> None:
    """Report the framework and the state of every part to a new recorder."""
    _name_framework(writer)
    for adapter in _adapters.values():
        adapter.report(writer)


def has_framework() -> bool:
    """Whether a framework that marks its own stages is loaded."""
    return any(adapter.precedence is not None for adapter in _adapters.values())


def trackers_are_quiet() -> bool:
    """Whether trackers should record nothing, because a framework's adapter has the values."""
    return _quiet.get()


@contextmanager
def quiet_trackers() -> Iterator[None]:
    """Around a framework's own metric function: trackers called inside record nothing."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that its event loop left open is closed elsewhere
            _quiet.reset(token)


class _FrameworkAdapter:
    """One adapter file and its state in this process."""

    def __init__(self, stem: str) -> None:
        self.name = stem.replace("__", ".")
        self.kind = ""  # until the adapter is activated
        self.framework = self.name
        self._stem = stem
        self._version = ""
        self._hooks: dict[str, PatchSet] = {}
        self._installs: dict[str, Callable[[], None]] = {}
        self._has_failed = False
        # one object: ``when_imported`` ignores an object that it has already
        self.wake: Callable[[], None] = partial(_FrameworkAdapter._wake, self)

    def _wake(self) -> None:
        """Load the file and wait for the module of each part; called after the import."""
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
            compiling.exclude_guest_from_compilation()
        except Exception:  # noqa: BLE001 (never into the job)
            self._has_failed = True
            _count_error()
        writer = recorder.current
        if writer is not None:
            _name_framework(writer)
            self.report(writer)

    def _install(self, hook: PatchSet, trigger: str, change: Patch) -> None:
        hook.install(lambda patches: change(patches, sys.modules[trigger]))
        hook.switch.on_first_use = self._report_first
        writer = recorder.current
        if writer is not None:
            self.report(writer)

    def _report_first(self) -> None:
        """Report the state again when a part is used for the first time."""
        if recorder.current is not None:
            if self.kind == "trainer":
                _name_framework(recorder.current)
            self.report(recorder.current)

    @property
    def precedence(self) -> int | None:
        """Precedence of its name, 0 is the highest; None if it does not name the framework."""
        return _NAMING.index(self.kind) if self.kind in _NAMING and not self._is_unused else None

    @property
    def _is_unused(self) -> bool:
        hooks = self._hooks.values()
        return self.kind == "trainer" and not any(hook.switch.was_used for hook in hooks)

    def report(self, writer: recorder.Recorder) -> None:
        """Emit one gauge per part: 1 installed, 0 absent or off, -1 failed; another once used.

        An installed part may be unused: a version may call a different function than the patched.
        """
        if self._is_unused:
            return
        for part, hook in self._hooks.items():
            name = f"{self.name}/{part}/{self._version}"
            writer.gauge(f"adapter/{name}", _STATES[hook.state])
            if hook.switch.was_used:
                writer.gauge(f"delivered/{name}", 1.0)
        if self._has_failed:
            writer.gauge(f"adapter/{self.name}/{_LOAD}/{self._version}", _STATES["failed"])


def _name_framework(writer: recorder.Recorder) -> None:
    """Set the framework's name, unless the job has set one. A framework replaces a library."""
    ranked = [(a.precedence, a.framework) for a in _adapters.values() if a.precedence is not None]
    if not ranked:
        return
    _, found = min(ranked, key=lambda named: named[0])
    replaceable = [name for precedence, name in ranked if precedence > 0]
    current = writer.identity.framework
    if found != current and (not current or current in replaceable):
        writer.update_identity({"framework": found})


def _stems() -> list[str]:
    """Names of the adapter files; a file that starts with "_" is shared code."""
    return sorted(name for name in _module_names() if not name.startswith("_"))


def _module_names() -> list[str]:
    listed = getattr(getattr(__spec__, "loader", None), "module_names", None)
    if listed is not None:  # an attached guest is in memory, without files
        return list(listed(__name__))
    try:
        files = os.listdir(__path__[0])
    except OSError:
        import pkgutil  # noqa: PLC0415 (17 ms, for a guest in a zip only)

        return [module.name for module in pkgutil.iter_modules(__path__)]
    return [file[:-3] for file in files if file.endswith(".py")]


def _version(name: str) -> str:
    """Version of the package; "" if it has none."""
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
