"""The only file that replaces attributes of other packages' objects, and restores them.

Each hook has a ``PatchSet``, which lists what it replaced on which object. ``restore`` undoes the
list in reverse order. If somebody else has wrapped an attribute since then, it is not restored: our
wrapper stays below theirs, switched off, and only calls the original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from dfx_agent.wire import variables

State = Literal["off", "absent", "active", "failed"]

_MISSING = object()

registry: dict[str, PatchSet] = {}


class Switch:
    """Turns the wrappers of one installation on and off; the next installation has its own."""

    __slots__ = ("is_on", "on_first_use", "was_used")

    def __init__(self) -> None:
        self.is_on = False
        self.was_used = False  # whether a call of the job has come through a wrapper
        self.on_first_use: Callable[[], None] | None = None

    def mark_used(self) -> None:
        """Note that a wrapper was used; the first time, call ``on_first_use``. Never raises."""
        if not self.was_used:
            self.was_used = True
            if self.on_first_use is not None:
                with suppress(Exception):
                    self.on_first_use()


class PatchSet:
    """Everything that one hook changes. ``state`` is "absent" if there was nothing to patch.

    An optional hook is reported only if it is enabled explicitly.
    """

    def __init__(self, name: str, *, is_optional: bool = False) -> None:
        self.name = name
        self.is_optional = is_optional
        self.state: State = "off"
        self.switch = Switch()
        self._undo: list[Callable[[], None]] = []
        registry[name] = self

    @property
    def is_active(self) -> bool:
        """Whether the hook records: it is installed and not suspended."""
        return self.switch.is_on

    def install(self, change: Callable[[PatchSet], None]) -> None:
        """Run ``change(self)``; if it fails, undo it and do not raise into the job."""
        if self._undo or self.name in disabled():
            return
        self.switch = Switch()
        try:
            change(self)
        except Exception:  # noqa: BLE001 (never into the job)
            self.restore()
            self.state = "failed"
            return
        self.switch.is_on = bool(self._undo)
        self.state = "active" if self._undo else "absent"

    def replace(self, owner: Any, name: str, make: Callable[[Any, Switch], Any]) -> None:
        """Set ``owner.name = make(owner.name, switch)``, if there is such a function.

        Static and class methods and properties, own or inherited, are not replaced: a function in
        their place would get other arguments. ``restore`` sets the raw entry of ``__dict__``,
        because ``getattr`` of a pybind11 class returns a method that has lost ``self``.
        """
        current: Any = getattr(owner, name, _MISSING)
        if current is _MISSING or _is_no_function(owner, name):
            return
        raw = vars(owner).get(name, _MISSING)
        replacement = make(current, self.switch)
        functools.update_wrapper(replacement, current)
        setattr(owner, name, replacement)
        self.on_restore(lambda: _put_back(owner, name, replacement, raw))

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Run ``undo`` when the hook is restored, such as removing the handle of a torch hook."""
        self._undo.append(undo)

    def suspend(self) -> None:
        """Stop recording; changes stay in place until ``restore``. Safe in any thread."""
        self.switch.is_on = False
        self.state = "off"

    def resume(self, state: State) -> None:
        """Continue after ``suspend``, in the state before it."""
        self.switch.is_on = state == "active"
        self.state = state

    def restore(self) -> None:
        """Undo all changes, the last one first."""
        self.switch.is_on = False
        self.state = "off"
        while self._undo:
            try:
                self._undo.pop()()
            except Exception:  # noqa: BLE001 (the others must still be undone)
                self.state = "failed"


def restore_all() -> None:
    """Restore every hook, the latest first."""
    for patches in reversed(registry.values()):
        patches.restore()


def disabled() -> frozenset[str]:
    """Names of hooks that must not be installed."""
    names = variables.DISABLE_HOOKS.value()
    return frozenset(registry) if "all" in names else names


def _is_no_function(owner: Any, name: str) -> bool:
    family = getattr(owner, "__mro__", (owner,))
    found = next((vars(owner)[name] for owner in family if name in vars(owner)), None)
    return isinstance(found, staticmethod | classmethod | property)


def _put_back(owner: Any, name: str, replacement: Any, raw: Any) -> None:
    if vars(owner).get(name) is not replacement:
        return
    if raw is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, raw)
