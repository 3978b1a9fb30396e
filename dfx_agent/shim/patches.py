"""The only file that replaces attributes of somebody else's objects, and puts them back.

Each hook has a ``PatchSet``: what it replaced on which object, in order; ``restore`` goes back in
reverse order. An attribute that somebody else has wrapped since is left alone: our wrapper stays
below theirs, switched off for ever, and does nothing but call the original.
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
    """Asked by the wrappers of one installation; the next installation has its own.

    ``has_seen``: something of the job has come through; ``on_first`` is called when it first does.
    """

    __slots__ = ("has_seen", "is_on", "on_first")

    def __init__(self) -> None:
        self.is_on = False
        self.has_seen = False
        self.on_first: Callable[[], None] | None = None

    def see(self) -> None:
        """Told by a wrapper through which something came; never raises."""
        if not self.has_seen:
            self.has_seen = True
            if self.on_first is not None:
                with suppress(Exception):
                    self.on_first()


class PatchSet:
    """Everything that one hook changes. ``state`` is absent when there was nothing to patch.

    An optional one is not spoken of unless it was asked for.
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
        """Whether it records: installed, and not given up since."""
        return self.switch.is_on

    def install(self, change: Callable[[PatchSet], None]) -> None:
        """Apply ``change``; whatever goes wrong is taken back and never reaches the job."""
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
        """``owner.name = make(owner.name, switch)``; passed over where there is no such attribute.

        Passed over, too, where it is a static or class method or a property, an inherited one as
        well: a function in its place would be called with other arguments. The raw entry of
        ``__dict__`` is kept: what ``getattr`` gives for a method of a pybind11 class cannot be put
        back (it has lost ``self``).
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
        """Run ``undo`` when the hook is taken back (the handle of an official hook, say)."""
        self._undo.append(undo)

    def suspend(self) -> None:
        """Do nothing from now on; what was changed stays until ``restore``. Safe in any thread."""
        self.switch.is_on = False
        self.state = "off"

    def resume(self, state: State) -> None:
        """Go on as before ``suspend``, in the state of then."""
        self.switch.is_on = state == "active"
        self.state = state

    def restore(self) -> None:
        """Everything as it was, last change first."""
        self.switch.is_on = False
        self.state = "off"
        while self._undo:
            try:
                self._undo.pop()()
            except Exception:  # noqa: BLE001 (the others must still be undone)
                self.state = "failed"


def restore_all() -> None:
    """Take back every hook, the newest first."""
    for patches in reversed(registry.values()):
        patches.restore()


def disabled() -> frozenset[str]:
    """Names of the hooks that must stay out."""
    names = variables.DISABLE_HOOKS.value()
    return frozenset(registry) if "all" in names else names


def _is_no_function(owner: Any, name: str) -> bool:
    family = getattr(owner, "__mro__", (owner,))
    found = next((vars(each)[name] for each in family if name in vars(each)), None)
    return isinstance(found, staticmethod | classmethod | property)


def _put_back(owner: Any, name: str, replacement: Any, raw: Any) -> None:
    if vars(owner).get(name) is not replacement:
        return
    if raw is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, raw)
