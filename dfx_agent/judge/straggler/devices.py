"""Whether the device of a straggler ran slower than the devices of the others, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from dfx_agent.facts.devices import DeviceState
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.causes import SLOWER, SLOWER_TOKENS_UNKNOWN
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.devices import device_text

THROTTLED = "device throttled"

_LEAST_THROTTLED = 0.5  # of the last minute
_SLOWER_CLOCK = 0.95  # of the median of the others
_HEAT = "look at fans, inlet air or coolant of its node, or drain it"
# by what the backends call the reasons
_REMEDIES = {
    "power cap": "give it the power limit of the others; if it has that, look at the power supply",
    "power brake": "its node lacks power and brakes it: look at the power supply, or drain it",
    "software thermal": _HEAT,
    "hardware thermal": _HEAT,
    "hardware slowdown": "look at cooling and power supply of its node; if it stays, drain it",
}


def with_device(verdict: Verdict, devices: Mapping[str, DeviceState]) -> Verdict:
    """The same; where the clocks of who is blamed were held down below the others', that is why."""
    if verdict.state != "found" or verdict.cause not in {SLOWER, SLOWER_TOKENS_UNKNOWN}:
        return verdict
    lines = {rank: _line(rank, verdict.ranks, devices) for rank in verdict.ranks}
    held = tuple(rank for rank, line in lines.items() if line)
    if not held:
        return verdict
    reasons = dict.fromkeys(reason for rank in held for reason in devices[rank].reasons)
    summary = sentences.DEVICE_THROTTLED(
        found=verdict.summary, ranks=labels_text(held), reasons=", ".join(reasons) or "unknown why"
    )
    known = dict.fromkeys(_REMEDIES[reason] for reason in reasons if reason in _REMEDIES)
    remedies = (f"what to do: {remedy}" for remedy in known)
    evidence = (*(lines[rank] for rank in held), *remedies, *verdict.evidence)
    return replace(verdict, cause=THROTTLED, summary=summary, evidence=evidence)


def _line(rank: str, blamed: tuple[str, ...], devices: Mapping[str, DeviceState]) -> str:
    """What the devices say; "" where they do not explain it."""
    own = devices.get(rank)
    if own is None or own.clock_hertz is None or own.throttled_ratio is None:
        return ""
    clocks = [
        state.clock_hertz
        for label, state in devices.items()
        if label not in blamed and state.clock_hertz is not None
    ]
    if not clocks or own.throttled_ratio < _LEAST_THROTTLED:
        return ""
    others = median(clocks)
    if own.clock_hertz > _SLOWER_CLOCK * others:
        return ""
    names = ", ".join(map(device_text, own.names))
    return (
        f"{names} ran at {own.clock_hertz / 1e6:.0f} MHz, devices of the others at "
        f"{others / 1e6:.0f} MHz; its clocks were held down in {own.throttled_ratio:.0%} of the "
        f"last minute: {', '.join(own.reasons)}"
    )
