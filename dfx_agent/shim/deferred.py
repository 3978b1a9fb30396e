"""Reads scalars from a device without waiting for the device.

``float(tensor)`` would wait. Instead a side stream waits for the stream that computes the value,
copies the value into pinned memory and records an event. ``flush``, called once per step, reads
the values whose events have completed. This works for CUDA and for devices with the same interface
(``torch.cuda``, ``torch.npu``, ``torch.xpu``).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MAX_PENDING = 1024


class _Host:
    """In place of a device's event: what is on the host is complete."""

    @staticmethod
    def query() -> bool:
        return True


class DeferredScalars:
    """Values that are being copied from a device; ``write(name, value, step)`` receives them."""

    def __init__(self, write: Callable[[str, float, int], None]) -> None:
        self._write = write
        # accelerator, event, function to call when the event has completed
        self.pending: deque[tuple[Any, Any, Callable[[], None]]] = deque()
        self._streams: dict[Any, Any] = {}

    @staticmethod
    def is_on_device(value: Any) -> bool:
        """Whether reading this value would wait for a device."""
        is_int = type(value) is int  # the common case, and faster than looking for a device
        return not is_int and getattr(getattr(value, "device", None), "type", "cpu") != "cpu"

    def add(self, name: str, value: Any, step: int) -> None:
        """Start the copy of a tensor with one element, without waiting."""
        value = getattr(value, "_local_tensor", value).detach().reshape(())
        self.fetch(value, lambda host: self._write(name, float(host), step))

    def fetch(self, value: Any, receive: Callable[[Any], None]) -> None:
        """Start the copy of a small tensor; a later ``flush`` passes the copy to ``receive``.

        Raises RuntimeError while a graph is captured (any call would invalidate the capture) and
        while too many copies are pending.
        """
        torch = sys.modules["torch"]
        accelerator = getattr(torch, value.device.type)
        if is_capturing(accelerator):
            raise RuntimeError("a graph is being captured")
        if len(self.pending) >= _MAX_PENDING:
            self.flush()
        if len(self.pending) >= _MAX_PENDING:
            raise RuntimeError("too many values are waiting for the device")
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
        self.when_done(accelerator, event, lambda: receive(host))

    def when_done(self, accelerator: Any, event: Any, act: Callable[[], None]) -> None:
        """Make a later ``flush`` call ``act``, once the event has completed."""
        self.pending.append((accelerator, event, act))

    def postpone(self, act: Callable[[], None]) -> None:
        """Make the next ``flush``, at the begin of a step, call ``act``."""
        if len(self.pending) >= _MAX_PENDING:
            self.flush()
        self.pending.append((None, _Host, act))

    def flush(self) -> None:
        """Process completed values in order, up to the first that is not complete.

        Each one is removed before it is examined, because another thread may flush as well.
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
    """Whether a graph is being captured, which any call of the guest would invalidate."""
    ask = getattr(accelerator, "is_current_stream_capturing", None)
    return ask is not None and ask()
