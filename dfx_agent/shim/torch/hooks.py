"""Everything the guest hooks into torch, put in and taken out together.

``DFX_DISABLE_HOOKS`` names hooks that stay out ("collectives,forward", or "all").
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from dfx_agent.shim import compiling, patches, recorder
from dfx_agent.shim.torch import collectives, modules, serving, step_hooks, step_losses
from dfx_agent.shim.torch.watch import Watch

# The engine reads hooks of parameters without the GIL, and torch iterates over the other two: only
# the thread that trains may change them, at the begin of its backward.
_OF_TRAINING_THREAD = frozenset({"ddp", "forward", "optimizer"})

_watch: Watch | None = None
_departures: list[tuple[dict[str, patches.State], Callable[[], None]]] = []


def install() -> None:
    """Hook into the torch that is loaded, and watch as soon as this process records."""
    _stay_after_all()
    if "torch.distributed" in sys.modules:
        collectives.install()
    step_hooks.install()
    serving.listen()
    compiling.keep_guest_out()
    if recorder.current is not None:
        start_watch()


def start_watch(*, always: bool = False) -> None:
    """Once per process that records and has torch; ``always``: without torch too."""
    global _watch  # noqa: PLW0603 (one thread per process)
    if _watch is None and (always or patches.registry.keys() - patches.disabled()):
        _watch = Watch()
        _watch.start()


def remove() -> None:
    """Stop watching and put everything back: at the end of the process, or asked by the job."""
    _stop_watching()
    patches.restore_all()


def withdraw(gone: Callable[[], None]) -> None:
    """The same while the job goes on, from a thread that does not train; ``gone`` comes last.

    What only the training thread may take out does nothing from now on, and goes when that thread
    begins its next backward. A process that has never run one has nothing in its way.
    """
    _stop_watching()
    backward = step_hooks.BACKWARD
    if not (backward.is_active and step_hooks._seen.has_backward):  # noqa: SLF001 (of this guest)
        patches.restore_all()
        gone()
        return
    states = {
        name: patches.registry[name].state for name in _OF_TRAINING_THREAD & {*patches.registry}
    }
    for name, hook in reversed(patches.registry.items()):
        if name in states:
            hook.suspend()
        elif hook is not backward:
            hook.restore()
    step_hooks.before_next_backward.clear()  # models that were to be followed
    _departures.append((states, gone))
    step_hooks.before_next_backward.append(_depart)


def _depart() -> None:
    """In the thread that trains."""
    try:
        _, gone = _departures.pop()
    except IndexError:
        return
    patches.restore_all()
    recorder.forget_context()
    gone()


def _stay_after_all() -> None:
    """The agent is back before the training thread has taken our hooks out: they go on."""
    try:
        states, _ = _departures.pop()
    except IndexError:
        return
    step_losses.begin(is_late=True)
    for name, state in states.items():
        patches.registry[name].resume(state)


def _stop_watching() -> None:
    global _watch  # noqa: PLW0603
    if _watch is not None:
        _watch.stop()
        _watch = None


def after_fork() -> None:
    """The child has the patches but not the thread, and no works in flight of its own."""
    global _watch  # noqa: PLW0603
    _watch = None
    collectives.after_fork()
    modules.after_fork()
    modules.SERVING.restore()
    step_hooks.after_fork()
