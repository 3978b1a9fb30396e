"""Detects tensors that accumulate on a device, and in how many steps the device will be full.

Memory is measured at the ends of steps, where activations are released. What grows there is never
released. The peak within a step grows by the same amount, and the job fails when the peak reaches
the size of the device. Other processes may need more memory later, so the number of steps is an
upper limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dfx_agent.base.text import age_text, bytes_text, capitalized
from dfx_agent.facts.memory import DeviceUse, MemoryFacts
from dfx_agent.facts.seat import ProcessId
from dfx_agent.judge.memory import sentences
from dfx_agent.judge.memory.growth import (
    RISE_TO_STAY,
    SMALLEST_RISE,
    URGENT_STEPS,
    Begin,
    Begins,
    begin_of_growth,
    is_higher_than_before,
    seconds_of,
    steady_bytes_per_step,
    urgent_bytes_per_step,
)
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import Verdict

DEVICE_LEAK = "device leak"
DevicePlace = tuple[ProcessId, str]  # process and its device

_URGENT_STEPS_LEFT = 10 * URGENT_STEPS
_MAX_LINES = 8


class _Leak(NamedTuple):
    """Steady growth of one process on one device."""

    facts: MemoryFacts
    device: DeviceUse
    bytes_per_step: float
    steps_left: float

    @property
    def seconds_left(self) -> float:
        return self.steps_left * (self.facts.step_seconds or 0.0)


def device_leak(
    role: str,
    ranks: Sequence[MemoryFacts],
    limits: tuple[float, float],
    growing_before: set[DevicePlace],
    begins: Begins,
    now_seconds: float,
) -> Verdict | None:
    """The finding on devices that will be full soon; None if there are none.

    ``limits``: (steps, seconds) until the device is full that are reported.
    ``growing_before``: places that grew at the last call; it is updated.
    """
    leaks = []
    for facts in ranks:
        for device in facts.devices:
            place = facts.process, device.device
            leak = _leak(facts, device, RISE_TO_STAY if place in growing_before else SMALLEST_RISE)
            growing_before.discard(place)
            if leak is not None:
                growing_before.add(place)
                leaks.append(leak)
    most_steps, most_seconds = limits
    leaks = [
        leak for leak in leaks if leak.steps_left <= most_steps or leak.seconds_left <= most_seconds
    ]
    if not leaks:
        return None
    leaks.sort(key=lambda leak: leak.steps_left)
    begin = begins.setdefault((role, DEVICE_LEAK), _begin_of(leaks[0]))
    return _found(role, leaks, begin, now_seconds)


def _begin_of(leak: _Leak) -> Begin:
    return begin_of_growth(leak.device.allocated_samples, leak.bytes_per_step)


def _found(role: str, leaks: Sequence[_Leak], begin: Begin, now_seconds: float) -> Verdict:
    """The finding. ``leaks``: the device that is full first comes first."""
    first = leaks[0]
    labels = tuple(dict.fromkeys(leak.facts.process.label for leak in leaks))
    summary = sentences.DEVICE_LEAK(
        ranks=capitalized(labels_text(labels)),
        have="has" if len(labels) == 1 else "have",
        amount=bytes_text(first.bytes_per_step),
        device=first.device.device,
        since=begin,
        steps=f"{first.steps_left:.0f}",
        time=age_text(first.seconds_left),
    )
    return Verdict(
        kind="memory",
        state="found",
        role=role,
        summary=summary,
        ranks=labels,
        cause=DEVICE_LEAK,
        step=begin.step,
        since_seconds=seconds_of(first.facts, begin.step, now_seconds),
        evidence=tuple(map(_line, leaks[:_MAX_LINES])),
        action=sentences.DEVICE_LEAK.action,
    )


def _leak(facts: MemoryFacts, device: DeviceUse, smallest_rise: float) -> _Leak | None:
    """The leak by the last 64 steps, or by 16 if the device is nearly full; else None."""
    samples, peak = device.allocated_samples, device.peak_bytes
    if not device.limit_bytes or peak is None or not samples or facts.step_seconds is None:
        return None
    free = max(0.0, device.limit_bytes - peak - (device.outside_bytes or 0.0))
    per_step = steady_bytes_per_step(samples, smallest_rise=smallest_rise)
    if per_step and not is_higher_than_before(samples, device.highest_before_bytes):
        return None
    if not per_step:
        per_step = urgent_bytes_per_step(samples, ())
        if not per_step or free > _URGENT_STEPS_LEFT * per_step:
            return None
    return _Leak(facts, device, per_step, free / per_step)


def _line(leak: _Leak) -> str:
    device, samples = leak.device, leak.device.allocated_samples
    (first, before), (last, after) = samples[0], samples[-1]
    other = device.outside_bytes
    others = "" if other is None else f", {bytes_text(other)} used by others"
    return (
        f"{labels_text([leak.facts.process.label])}: {bytes_text(before)} allocated after step "
        f"{first}, {bytes_text(after)} after step {last}, {bytes_text(device.peak_bytes or 0.0)} "
        f"at most{others}; {device.device} has {bytes_text(device.limit_bytes or 0.0)}"
    )
