"""Scalars that live on a device: copied aside without waiting, read when the copy has arrived.

Reading ``float(tensor)`` would wait for the device. Instead a side stream waits for the producing
stream, copies the value into pinned memory and records an event; ``flush``, called once per step,
takes the values whose events have completed. CUDA and
devices with the same interface (``torch.cuda``, ``torch.npu``, ``torch.xpu``).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MAX_PENDING = 1024


class DeferredScalars:
    """Values on their way from a device; ``write(name, value, step)`` receives them."""

    def __init__(self, write: Callable[[str, float, int], None]) -> None:
        self._write = write
        # accelerator, event, what to do when it has completed
        self.pending: deque[tuple[Any, Any, Callable[[], None]]] = deque()
        self._streams: dict[Any, Any] = {}

    @staticmethod
    def takes(value: Any) -> bool:
        """Whether reading this value would have to wait for a device."""
        is_int = type(value) is int  # sooner told than that it has no device
        return not is_int and getattr(getattr(value, "device", None), "type", "cpu") != "cpu"

    def add(self, name: str, value: Any, step: int) -> None:
        """Start the copy of a one-element tensor; never waits."""
        value = getattr(value, "_local_tensor", value).detach().reshape(())
        self.fetch(value, lambda host: self._write(name, float(host), step))

    def fetch(self, value: Any, take: Callable[[Any], None]) -> None:
        """Start the copy of a small tensor; a later ``flush`` gives its copy to ``take``.

        RuntimeError while a graph is captured, where every call of ours would end the capture, and
        with too many values on their way.
        """
        torch = sys.modules["torch"]
        accelerator = getattr(torch, value.device.type)
        if is_capturing(accelerator):
            raise RuntimeError("a graph is being captured")
        if len(self.pending) >= _MAX_PENDING:
            self.flush()
        if len(self.pending) >= _MAX_PENDING:
            raise RuntimeError("the device does not keep up")
        stream = self._streams.get(value.device)
        if stream is None:
            stream = self._streams[value.device] = accelerator.Stream(value.device)
        stream.wait_stream(accelerator.current_stream(value.device))
        with accelerator.stream(stream):
            host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            host.copy_(value, non_blocking=True)
            value.record_stream(stream)
            event = accelerator.Event()
            event.record(stream)
        self.when_done(accelerator, event, lambda: take(host))

    def when_done(self, accelerator: Any, event: Any, act: Callable[[], None]) -> None:
        """A later ``flush`` calls ``act``: one that finds the event completed."""
        self.pending.append((accelerator, event, act))

    def flush(self) -> None:
        """Hand over what has arrived, in order; stops at the first that has not.

        Each is taken out before it is looked at: another thread may be flushing too.
        """
        with suppress(IndexError):
            while self.pending:
                first = self.pending.popleft()
                accelerator, event, act = first
                if is_capturing(accelerator) or not event.query():
                    self.pending.appendleft(first)
                    return
                act()


def is_capturing(accelerator: Any) -> bool:
    """Whether a graph is captured: a call of ours would end it."""
    ask = getattr(accelerator, "is_current_stream_capturing", None)
    return ask is not None and ask()
