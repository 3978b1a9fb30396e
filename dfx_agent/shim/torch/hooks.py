"""All hooks of the guest in torch, installed and removed together.

``DFX_DISABLE_HOOKS`` names hooks that are not installed ("collectives,forward", or "all").
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from dfx_agent.shim import compiling, meter, patches, recorder
from dfx_agent.shim.torch import collectives, modules, role, step_hooks, step_losses
from dfx_agent.shim.torch.watch_thread import WatchThread

# The autograd engine reads hooks of parameters without the GIL, and torch iterates over the others:
# only the training thread may change them, at the begin of its backward.
_OF_TRAINING_THREAD = frozenset({"ddp", "flops", "forward", "optimizer"})


def _do_nothing() -> None:
    """Placeholder while no agent is attached."""


class TorchHooks:
    """The torch hooks of this process. The guest's own thread calls ``check`` every second."""

    def __init__(self) -> None:
        self.check: Callable[[], None] = _do_nothing
        self.watch: WatchThread | None = None
        # hooks that the training thread must remove: their states, and what to call afterwards. At
        # most one entry, in a list, so that only one of two threads can pop it
        self._removals: list[tuple[dict[str, patches.State], Callable[[], None]]] = []

    def install(self) -> None:
        """Install hooks in the loaded torch, and start the thread if this process records."""
        self._cancel_removal()
        if "torch.distributed" in sys.modules:
            collectives.install()
        step_hooks.install()
        role.install()
        compiling.exclude_guest_from_compilation()
        if recorder.current is not None:
            self.start_watch()

    def start_watch(self, *, always: bool = False) -> None:
        """Start the guest's thread once per process; ``always`` means even without torch."""
        if self.watch is None and (always or patches.registry.keys() - patches.disabled()):
            self.watch = WatchThread(self.check)
            self.watch.start()

    def remove(self) -> None:
        """Stop the thread and remove all hooks, at the exit of the process or on shutdown."""
        self._stop_watching()
        patches.restore_all()

    def withdraw(self, on_gone: Callable[[], None]) -> None:
        """Remove all hooks while the job continues, then call ``on_gone``.

        Called in a thread that does not train. Hooks that only the training thread may remove are
        suspended, and removed when that thread begins its next backward. Without a backward so far
        everything is removed at once.
        """
        self._stop_watching()
        backward = step_hooks.BACKWARD
        if not (backward.is_active and step_hooks.seen.has_backward):
            patches.restore_all()
            on_gone()
            return
        states = self._waiting_states()
        for name, hook in reversed(patches.registry.items()):
            if name in states:
                hook.suspend()
            elif hook is not backward:
                hook.restore()
        step_hooks.before_next_backward.clear()  # models that were to be followed
        self._removals.append((states, on_gone))
        step_hooks.before_next_backward.append(self._remove_in_training_thread)

    def after_fork(self) -> None:
        """Adjust a forked child, which has the patches but neither the thread nor pending works."""
        self.watch = None
        meter.close_window()
        collectives.forget_works_and_groups()
        modules.stop_listening()
        modules.SERVING.restore()
        step_hooks.begin_in_child()

    def _waiting_states(self) -> dict[str, patches.State]:
        """States of hooks before they were suspended, maybe by an earlier detach."""
        try:
            states, _ = self._removals.pop()
        except IndexError:
            names = _OF_TRAINING_THREAD & {*patches.registry}
            states = {name: patches.registry[name].state for name in names}
        return states

    def _remove_in_training_thread(self) -> None:
        try:
            _, on_gone = self._removals.pop()
        except IndexError:
            return
        patches.restore_all()
        recorder.clear_context()
        on_gone()

    def _cancel_removal(self) -> None:
        """Resume hooks that the training thread has not removed before an agent attached again."""
        try:
            states, _ = self._removals.pop()
        except IndexError:
            return
        step_losses.begin(is_late=True)
        for name, state in states.items():
            patches.registry[name].resume(state)

    def _stop_watching(self) -> None:
        if self.watch is not None:
            self.watch.stop()
            self.watch = None


torch_hooks = TorchHooks()
