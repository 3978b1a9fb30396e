"""Memory of the processes of a job as rows of a Snapshot, made when their node has told more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from dfx_agent.facts.memory import MemoryFacts, Samples
from dfx_agent.facts.seat import ProcessId
from dfx_agent.snapshot import DeviceMemory, HostMemory

_MIN_SAMPLES, _NUM_PARTS = 8, 4


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """What one process has, as its node told it last: at the end of one of its newest steps."""

    facts: MemoryFacts
    host: HostMemory | None
    devices: tuple[DeviceMemory, ...]


class MemoryRows:
    """Of one node; the same row until other facts come."""

    def __init__(self) -> None:
        self._rows: dict[ProcessId, MemoryRow] = {}

    def of(self, told: Mapping[ProcessId, MemoryFacts]) -> Mapping[ProcessId, MemoryRow]:
        """By the process' own name on its node."""
        before = self._rows
        self._rows = {
            process: known
            if (known := before.get(process)) is not None and known.facts is facts
            else _row(facts)
            for process, facts in told.items()
        }
        return self._rows


def _row(facts: MemoryFacts) -> MemoryRow:
    host = None
    if facts.samples:
        host = HostMemory(facts.samples[-1][1], _slope(facts.samples), facts.heap)
    devices = (
        DeviceMemory(each.device, None, each.reserved_bytes, each.limit_bytes)
        for each in facts.devices
    )
    return MemoryRow(facts, host, tuple(devices))


def _slope(samples: Samples) -> float | None:
    """Bytes per step between the first and the last quarter; None below 8 steps."""
    if len(samples) < _MIN_SAMPLES:
        return None
    num = len(samples) // _NUM_PARTS
    first, last = samples[:num], samples[-num:]
    steps = median(step for step, _ in last) - median(step for step, _ in first)
    return (median(held for _, held in last) - median(held for _, held in first)) / max(1, steps)
