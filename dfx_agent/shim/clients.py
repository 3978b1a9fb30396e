"""Calls in which the main thread waits for another process: a server, or a data loader's worker.

A trainer that fetches rollouts over HTTP, ZeroMQ or gRPC ("remote"), or the next batch from an
empty queue of torch's DataLoader ("data_loader"), does nothing meanwhile. Only the main
thread, only outside every span of the job (inside a stage the job says what the time is), only in a
process that records, and only the call that blocks: a client in an event loop blocks nobody.
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
# module that is imported -> owner and method where its caller blocks; absent ones are passed over
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
    """In a process that records: each client as soon as the job has imported it."""
    for module in _CALLS:
        imports.when_imported(module, _installs[module])


def _install(module: str) -> None:
    if recorder.current is not None:
        PATCHES[module].install(partial(_patch, module))


# the same objects each time: ``when_imported`` takes each once
_installs: dict[str, Callable[[], None]] = {module: partial(_install, module) for module in _CALLS}


def _patch(module: str, patches: PatchSet) -> None:
    for path in _CALLS[module]:
        owner, _, method = path.partition(".")
        kind = DATA_LOADER_WAIT if module == _DATA_LOADER else REMOTE_WAIT
        patches.replace(getattr(sys.modules[module], owner, None), method, partial(_waiting, kind))


def _waiting(kind: str, original: Any, switch: Switch) -> Any:
    only_looks = _ONLY_LOOKS.get(original.__name__)

    def ask(*args: Any, **kwargs: Any) -> Any:
        is_wait = switch.is_on and _stands()
        if not is_wait or (only_looks is not None and only_looks(args, kwargs)):
            return original(*args, **kwargs)
        with _begun(kind):
            return original(*args, **kwargs)

    return ask


def _begun(kind: str) -> wait:
    global num_waits  # noqa: PLW0603 (of the main thread alone)
    num_waits += 1
    return wait(kind)


def _stands() -> bool:
    """Whether this is the main thread of a process that records, with no span of the job open."""
    writer = recorder.current
    if writer is None or _ident() != writer.main_ident:
        return False
    opened = span_writer.innermost.get()
    while opened is not None and not opened[1]._num_open:  # noqa: SLF001
        opened = opened[-1]
    return opened is None or opened[0] is not writer


def _polls_at_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``zmq.Poller.poll(timeout)``: no time at all."""
    timeout = args[1] if len(args) > 1 else kwargs.get("timeout")
    return timeout is not None and not timeout


def _receives_at_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``zmq.Socket.recv(flags)``: what is there already."""
    flags = args[1] if len(args) > 1 else kwargs.get("flags", 0)
    return isinstance(flags, int) and bool(flags & _NO_BLOCK)


# jobs call these in loops
_ONLY_LOOKS = {"poll": _polls_at_once, "recv": _receives_at_once}
