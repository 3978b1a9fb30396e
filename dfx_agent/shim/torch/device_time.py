"""Measures how long a device's stream was in a collective, with events that are read steps later.

Events are recorded on the current stream: where this rank arrived (before the call), where its
stream began to wait (before ``Work.wait``; the same point if torch issues into the current stream
and returns no work), and where the stream continued. A collective on a device then has the same
data as a blocking one on the host. It is measured in every 16th step, which all ranks know without
communication, and only with ``DFX_DEVICE_TIME=1``. Nothing here waits for a device: the training
thread queries the events in ``set_step``, like scalars (``deferred.py``). Not run on a GPU.
"""

from __future__ import annotations

import sys
from typing import Any

from dfx_agent.shim import recorder
from dfx_agent.shim.deferred import is_capturing
from dfx_agent.shim.patches import PatchSet
from dfx_agent.wire import variables
from dfx_agent.wire.records import DEVICE_TIME

PATCHES = PatchSet("device_time", is_optional=True)

EVERY_STEPS = 16
MAX_UNDERWAY = 256
SKIPPED = "device_time/skipped"
_FIRST_SEQUENCE = 2  # the first collective of a group creates its communicator, which takes seconds

_free: dict[Any, list[Any]] = {}  # events by device, for reuse
_sampled = 0, 0  # step, collectives begun in it


def install() -> None:
    """Enable the measurement, if DFX_DEVICE_TIME is set."""
    if variables.DEVICE_TIME.value():
        PATCHES.install(lambda patches: patches.on_restore(_free.clear))


class Timing:
    """One collective: its events so far; None if it is not measured any more."""

    __slots__ = ("_accelerator", "_begun", "_device", "_events")

    def __init__(self, begun: tuple[Any, ...], device: Any) -> None:
        self._begun, self._device = begun, device
        self._accelerator = getattr(sys.modules["torch"], device.type)
        self._events: list[Any] | None = []

    def mark(self, *, is_last: bool = False) -> None:
        """Record an event on the current stream; after the last one the events may be read."""
        try:
            events, accelerator = self._events, self._accelerator
            if events is None or not PATCHES.switch.is_on or is_capturing(accelerator):
                self._events = None
                return
            free_events = _free.get(self._device)
            event = free_events.pop() if free_events else accelerator.Event(enable_timing=True)
            event.record(accelerator.current_stream(self._device))
            events.append(event)
            if is_last:
                self._begun[0]._deferred.when_done(accelerator, event, self.write)  # noqa: SLF001 (of this guest)
        except Exception:  # noqa: BLE001 (never into the job)
            self._events = None
            _give_up()

    def write(self) -> None:
        """Write the record; called when all events have completed."""
        events = self._events
        if events is None:
            return
        writer, name_id, sequence, t0, _, _, parent, thread, _ = self._begun
        whole_ms = events[0].elapsed_time(events[-1])
        # another stream may wait before the issuing one has arrived: that is not the collective yet
        stood_seconds = min(whole_ms, events[-2].elapsed_time(events[-1])) / 1e3
        t1 = t0 + int(whole_ms * 1e6)
        writer.emit(t0, t1, stood_seconds, sequence, 0, parent, thread, DEVICE_TIME, name_id)
        if PATCHES.switch.is_on:
            _free.setdefault(self._device, []).extend(events)


def begin(begun: tuple[Any, ...], args: tuple[Any, ...]) -> Timing | None:
    """Start to measure a collective that will be issued; None if not measured. Never raises.

    ``begun`` is the open record of ``collectives``, ``args`` the arguments of its method.
    """
    global _sampled  # noqa: PLW0603 (a race of two threads measures one more)
    if not PATCHES.switch.is_on:
        return None
    try:
        writer, step = begun[0], begun[0].step
        if step is None or step % EVERY_STEPS or begun[2] < _FIRST_SEQUENCE:
            return None
        num_begun = _sampled[1] if _sampled[0] == step else 0
        if max(num_begun, len(writer._deferred.pending)) >= MAX_UNDERWAY:  # noqa: SLF001 (of this guest)
            writer.count(SKIPPED, 1.0)
            return None
        timing = Timing(begun, _device_of(args[1:3]))
        timing.mark()
        _sampled = step, num_begun + 1
    except Exception:  # noqa: BLE001 (never into the job)
        _give_up()
        return None
    return timing


def _device_of(payloads: tuple[Any, ...]) -> Any:
    """Device of the first tensor: only the root of a gather or scatter has both lists filled."""
    for payload in payloads:
        while isinstance(payload, (list, tuple)) and payload:
            payload = payload[0]  # noqa: PLW2901 (down to a tensor)
        if hasattr(payload, "device"):
            return payload.device
    raise TypeError("no tensor")


def _give_up() -> None:
    """Disable the measurement on a device that does not support it; the page shows "failed"."""
    recorder.count_error()
    PATCHES.restore()
    PATCHES.state = "failed"
