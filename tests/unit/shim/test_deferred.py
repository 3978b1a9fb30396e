"""Scalars on their way from a device, on a device of ours: no machine of CI has a real one.

tests/gpu runs the same code on CUDA.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import dfx_agent.shim as dfx
from dfx_agent.shim import deferred, recorder
from dfx_agent.shim.deferred import DeferredScalars
from dfx_agent.shim.lifecycle import guest
from dfx_agent.wire import SegmentReader


class Device:
    """What torch shows of an accelerator; ``calls`` are those that a graph capture forbids."""

    def __init__(self) -> None:
        self.is_capturing = self.is_broken = False
        self.has_arrived = True
        self.calls: list[str] = []

    def module(self) -> SimpleNamespace:
        device = self

        class Event:
            def record(self, _stream) -> None:
                device.calls.append("record")

            def query(self) -> bool:
                device.calls.append("query")
                if device.is_broken:
                    raise RuntimeError("device-side assert triggered")
                return device.has_arrived

        return SimpleNamespace(
            Stream=lambda _device: SimpleNamespace(wait_stream=lambda _other: None),
            current_stream=lambda _device: None,
            stream=lambda _stream: nullcontext(),
            Event=Event,
            is_current_stream_capturing=lambda: device.is_capturing,
        )


class Place(NamedTuple):
    type: str


class Tensor:
    """One number on the device."""

    device = Place("dfx_device")
    shape = ()
    dtype = None

    def __init__(self, value: float) -> None:
        self.value = value

    def detach(self):
        return self

    def reshape(self, _shape):
        return self

    def record_stream(self, _stream) -> None: ...

    def __float__(self) -> float:
        raise AssertionError("waited for the device")

    item = __float__


class Host:
    def copy_(self, value, *, non_blocking):
        assert non_blocking
        self.value = value.value

    def __float__(self) -> float:
        return self.value


@pytest.fixture
def device(monkeypatch):
    device = Device()
    torch = SimpleNamespace(dfx_device=device.module(), empty=lambda *_, **__: Host())
    monkeypatch.setitem(sys.modules, "torch", torch)
    return device


@pytest.fixture
def written():
    return []


@pytest.fixture
def scalars(device, written):
    return DeferredScalars(lambda *row: written.append(row))


def test_values_arrive_in_order_and_never_by_waiting(device, scalars, written):
    device.has_arrived = False
    for step in range(3):
        scalars.add("norm", Tensor(step / 2), step)
    scalars.flush()
    assert written == []
    device.has_arrived = True
    scalars.flush()
    assert written == [("norm", 0.0, 0), ("norm", 0.5, 1), ("norm", 1.0, 2)]


def test_a_graph_capture_is_left_alone(device, scalars, written):
    scalars.add("norm", Tensor(1.0), 1)
    device.is_capturing = True
    device.calls.clear()
    with pytest.raises(RuntimeError, match="captured"):
        scalars.add("norm", Tensor(2.0), 2)
    scalars.flush()
    assert device.calls == written == []
    device.is_capturing = False
    scalars.flush()
    assert written == [("norm", 1.0, 1)]


def test_a_job_that_has_no_steps_loses_nothing_unsaid(device, scalars, written, monkeypatch):
    monkeypatch.setattr(deferred, "_MAX_PENDING", 4)
    for step in range(9):
        scalars.add("norm", Tensor(float(step)), step)
    assert [step for _, _, step in written] == list(range(8))
    device.has_arrived = False
    for step in range(9, 12):
        scalars.add("norm", Tensor(float(step)), step)
    with pytest.raises(RuntimeError, match="waiting for the device"):
        scalars.add("norm", Tensor(12.0), 12)
    device.has_arrived = True
    scalars.flush()
    assert [step for _, _, step in written] == list(range(12))


def test_a_device_that_has_failed_does_not_spoil_the_orderly_end(device, dfx_dir, monkeypatch):
    monkeypatch.setattr(guest, "_is_refused", False)
    guest.stop()
    assert dfx.init(run="r")
    writer = recorder.current
    reader = SegmentReader(writer.path)
    dfx.scalar("norm", Tensor(1.0))
    device.is_broken = True
    dfx.shutdown()
    assert reader.live_words()[0] == 2
    assert reader.live_words()[4] == 1
    reader.close()
