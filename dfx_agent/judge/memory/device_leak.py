"""Whether what tensors take on a device grows until it is full, by steps that are left.

Measured at the ends of steps, where activations are gone: what stays there and grows is kept by
somebody. The most that was taken within a step grows with it, and the job ends where that reaches
what the device has. What other processes take there is not known to be theirs for ever: so it is at
most so many steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dfx_agent.base.text import age_text, capitalized
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
    bytes_text,
    is_higher_than_before,
    seconds_of,
    steady_bytes_per_step,
    urgent_bytes_per_step,
)
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import Verdict

DEVICE_LEAK = "device leak"
Place = tuple[ProcessId, str]  # and its device

_URGENT_STEPS_LEFT = 10 * URGENT_STEPS
_MOST_TOLD = 8


class _Leak(NamedTuple):
    """Of one device of one process."""

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
    known: set[Place],
    begins: Begins,
    now_seconds: float,
) -> Verdict | None:
    """None where no device is full within so many steps or seconds at the present growth.

    ``known``: where memory grew steadily when this was last asked; it is brought up to date.
    """
    leaks = []
    for facts in ranks:
        for device in facts.devices:
            place = facts.process, device.device
            leak = _leak(facts, device, RISE_TO_STAY if place in known else SMALLEST_RISE)
            known.discard(place)
            if leak is not None:
                known.add(place)
                leaks.append(leak)
    most_steps, most_seconds = limits
    leaks = [e for e in leaks if e.steps_left <= most_steps or e.seconds_left <= most_seconds]
    if not leaks:
        return None
    leaks.sort(key=lambda leak: leak.steps_left)
    begin = begins.setdefault((role, DEVICE_LEAK), _begin_of(leaks[0]))
    return _found(role, leaks, begin, now_seconds)


def _begin_of(leak: _Leak) -> Begin:
    return begin_of_growth(leak.device.allocated_samples, leak.bytes_per_step)


def _found(role: str, leaks: Sequence[_Leak], begin: Begin, now_seconds: float) -> Verdict:
    """``leaks``: what is full first comes first."""
    first = leaks[0]
    labels = tuple(dict.fromkeys(leak.facts.process.label for leak in leaks))
    said = sentences.DEVICE_LEAK(
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
        summary=said,
        ranks=labels,
        cause=DEVICE_LEAK,
        step=begin.step,
        since_seconds=seconds_of(first.facts, begin.step, now_seconds),
        evidence=tuple(map(_line, leaks[:_MOST_TOLD])),
        action=sentences.DEVICE_LEAK.action,
    )


def _leak(facts: MemoryFacts, device: DeviceUse, smallest_rise: float) -> _Leak | None:
    """By its newest 64 steps, or by 16 where the end is near."""
    samples, peak = device.allocated_samples, device.peak_bytes
    if not device.limit_bytes or peak is None or not samples or facts.step_seconds is None:
        return None
    free = max(0.0, device.limit_bytes - peak - (device.beside_bytes or 0.0))
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
    beside = "" if device.beside_bytes is None else f", {bytes_text(device.beside_bytes)} beside it"
    return (
        f"{labels_text([leak.facts.process.label])}: {bytes_text(before)} allocated after step "
        f"{first}, {bytes_text(after)} after step {last}, {bytes_text(device.peak_bytes or 0.0)} "
        f"at most{beside}; {device.device} has {bytes_text(device.limit_bytes or 0.0)}"
    )
