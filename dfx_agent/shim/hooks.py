"""Everything the guest hooks into torch, put in and taken out together.

``DFX_DISABLE_HOOKS`` names hooks that stay out ("collectives,forward", or "all").
"""

from __future__ import annotations

import sys

from dfx_agent.shim import collectives, patches, recorder, torch_hooks
from dfx_agent.shim.watch import Watch

_watch: Watch | None = None


def install() -> None:
    """Hook into the torch that is loaded, and watch as soon as this process records."""
    if "torch.distributed" in sys.modules:
        collectives.install()
    torch_hooks.install()
    if recorder.current is not None:
        start_watch()


def start_watch() -> None:
    """Once per process that records and has torch."""
    global _watch  # noqa: PLW0603 (one thread per process)
    if _watch is None and any(hook.state != "off" for hook in patches.registry.values()):
        _watch = Watch()
        _watch.start()


def remove() -> None:
    """Stop watching and put everything back."""
    global _watch  # noqa: PLW0603
    if _watch is not None:
        _watch.stop()
        _watch = None
    patches.restore_all()


def after_fork() -> None:
    """The child has the patches but not the thread, and no works in flight of its own."""
    global _watch  # noqa: PLW0603
    _watch = None
    collectives.after_fork()
