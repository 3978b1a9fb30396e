"""Records waits of the main thread for another process: a server, or a data loader's worker.

A trainer that fetches rollouts over HTTP, ZeroMQ or gRPC ("remote"), or the next batch from an
empty queue of torch's DataLoader ("data_loader"), does nothing in that time. A wait is recorded
only in the main thread, only outside every span of the job (a stage already accounts for the time),
and only around the call that blocks.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from dfx_agent.shim import imports, recorder, span_writer
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.spans import wait
from dfx_agent.wire.records import DATA_LOADER_WAIT, REMOTE_WAIT

_DATA_LOADER = "torch.utils.data.dataloader"
# module -> owner and method in which the caller blocks; missing ones are ignored
_CALLS = {
    # urllib too, and urllib3 with all that is built on it: requests, huggingface_hub
    "http.client": ("HTTPConnection.getresponse",),
    "httpx": ("HTTPTransport.handle_request",),
    "zmq": ("Socket.recv", "Poller.poll"),
    "grpc._channel": (
        "_UnaryUnaryMultiCallable._blocking",
        "_StreamUnaryMultiCallable._blocking",
        "_SingleThreadedRendezvous._next",
        "_MultiThreadedRendezvous._next",
        "_MultiThreadedRendezvous.result",
    ),
    _DATA_LOADER: ("_MultiProcessingDataLoaderIter._get_data",),
}
PATCHES = {
    module: PatchSet(
        DATA_LOADER_WAIT if module == _DATA_LOADER else f"remote_{module.partition('.')[0]}",
        is_optional=True,
    )
    for module in _CALLS
}
_NO_BLOCK = 1  # zmq.NOBLOCK, zmq.DONTWAIT

num_waits = 0  # begun so far
_ident = threading.get_ident


def install() -> None:
    """Patch each client as soon as the job has imported it."""
    for module in _CALLS:
        imports.when_imported(module, _installs[module])


def _install(module: str) -> None:
    if recorder.current is not None:
        PATCHES[module].install(partial(_patch, module))


# one object per module: ``when_imported`` ignores an object that it has already
_installs: dict[str, Callable[[], None]] = {module: partial(_install, module) for module in _CALLS}


def _patch(module: str, patches: PatchSet) -> None:
    for path in _CALLS[module]:
        owner, _, method = path.partition(".")
        kind = DATA_LOADER_WAIT if module == _DATA_LOADER else REMOTE_WAIT
        patches.replace(getattr(sys.modules[module], owner, None), method, partial(_waiting, kind))


def _waiting(kind: str, original: Any, switch: Switch) -> Any:
    is_non_blocking = _NON_BLOCKING.get(original.__name__)

    def ask(*args: Any, **kwargs: Any) -> Any:
        is_wait = switch.is_on and _is_unaccounted()
        if not is_wait or (is_non_blocking is not None and is_non_blocking(args, kwargs)):
            return original(*args, **kwargs)
        with _begin_wait(kind):
            return original(*args, **kwargs)

    return ask


def _begin_wait(kind: str) -> wait:
    global num_waits  # noqa: PLW0603 (of the main thread alone)
    num_waits += 1
    return wait(kind)


def _is_unaccounted() -> bool:
    """Whether the main thread of a recording process calls and no span of the job is open."""
    writer = recorder.current
    if writer is None or _ident() != writer.main_ident:
        return False
    opened = span_writer.innermost.get()
    while opened is not None and not opened[1]._num_open:  # noqa: SLF001
        opened = opened[-1]
    return opened is None or opened[0] is not writer


def _polls_at_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``zmq.Poller.poll(timeout)`` with a timeout of 0, which does not block."""
    timeout = args[1] if len(args) > 1 else kwargs.get("timeout")
    return timeout is not None and not timeout


def _receives_at_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``zmq.Socket.recv(flags)`` with NOBLOCK, which does not block."""
    flags = args[1] if len(args) > 1 else kwargs.get("flags", 0)
    return isinstance(flags, int) and bool(flags & _NO_BLOCK)


# calls that do not block; jobs make them in loops
_NON_BLOCKING = {"poll": _polls_at_once, "recv": _receives_at_once}
