"""Everything the guest hooks into torch, put in and taken out together.

``DFX_DISABLE_HOOKS`` names hooks that stay out ("collectives,forward", or "all").
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from dfx_agent.shim import compiling, meter, patches, recorder
from dfx_agent.shim.torch import collectives, modules, serving, step_hooks, step_losses
from dfx_agent.shim.torch.watch import Watch

# The engine reads hooks of parameters without the GIL, and torch iterates over the other two: only
# the thread that trains may change them, at the begin of its backward.
_OF_TRAINING_THREAD = frozenset({"ddp", "flops", "forward", "optimizer"})


def _nothing() -> None:
    """Nobody's visit is looked after."""


class TorchHooks:
    """Of this process. ``look`` is called by the guest's own thread about once a second."""

    def __init__(self) -> None:
        self.look: Callable[[], None] = _nothing
        self.watch: Watch | None = None
        # hooks that wait for the training thread, in their state before, and what comes after them:
        # one at most, in a list, from which only one of two threads can take it
        self._departures: list[tuple[dict[str, patches.State], Callable[[], None]]] = []

    def install(self) -> None:
        """Hook into the torch that is loaded, and watch as soon as this process records."""
        self._stay_after_all()
        if "torch.distributed" in sys.modules:
            collectives.install()
        step_hooks.install()
        serving.listen()
        compiling.keep_guest_out()
        if recorder.current is not None:
            self.start_watch()

    def start_watch(self, *, always: bool = False) -> None:
        """Once per process that records and has torch; ``always``: without torch too."""
        if self.watch is None and (always or patches.registry.keys() - patches.disabled()):
            self.watch = Watch(self.look)
            self.watch.start()

    def remove(self) -> None:
        """Stop watching and put everything back: at the end of the process, or asked by the job."""
        self._stop_watching()
        patches.restore_all()

    def withdraw(self, gone: Callable[[], None]) -> None:
        """The same while the job goes on, from a thread that does not train; ``gone`` comes last.

        What only the training thread may take out does nothing from now on, and goes when that
        thread begins its next backward. A process that has never run one has nothing in its way.
        """
        self._stop_watching()
        backward = step_hooks.BACKWARD
        if not (backward.is_active and step_hooks.seen.has_backward):
            patches.restore_all()
            gone()
            return
        states = self._waiting_states()
        for name, hook in reversed(patches.registry.items()):
            if name in states:
                hook.suspend()
            elif hook is not backward:
                hook.restore()
        step_hooks.before_next_backward.clear()  # models that were to be followed
        self._departures.append((states, gone))
        step_hooks.before_next_backward.append(self._depart)

    def after_fork(self) -> None:
        """The child has the patches but not the thread, and no works in flight of its own."""
        self.watch = None
        meter.close_window()
        collectives.forget_works_and_groups()
        modules.stop_listening()
        modules.SERVING.restore()
        step_hooks.begin_in_child()

    def _waiting_states(self) -> dict[str, patches.State]:
        """As they were before; an attach that failed while the one before was still leaving."""
        try:
            states, _ = self._departures.pop()
        except IndexError:
            names = _OF_TRAINING_THREAD & {*patches.registry}
            states = {name: patches.registry[name].state for name in names}
        return states

    def _depart(self) -> None:
        """In the thread that trains."""
        try:
            _, gone = self._departures.pop()
        except IndexError:
            return
        patches.restore_all()
        recorder.forget_context()
        gone()

    def _stay_after_all(self) -> None:
        """The agent is back before the training thread has taken our hooks out: they go on."""
        try:
            states, _ = self._departures.pop()
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
