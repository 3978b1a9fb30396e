"""What the judge of memory is given of each process."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from dfx_agent.facts.memory import DeviceUse, MemoryFacts, Samples
from dfx_agent.node.memory.gauges import HELD, device_rows
from dfx_agent.node.memory.limits import MemoryLimits
from dfx_agent.node.process import Process
from dfx_agent.snapshot import DeviceMemory

# an eighth of the least that is told as a leak: whose memory has not changed by that much over the
# steps that are kept needs no limits, and files of the kernel stay unread
_LEAST_CHANGE_BYTES = 4 * 2**20
_OFFLOAD = "offload"


class MemoryReader:
    """Of one machine; ``facts`` when somebody asks."""

    def __init__(self) -> None:
        self._limits = MemoryLimits()

    def facts(self, processes: Iterable[Process]) -> tuple[MemoryFacts, ...]:
        """Of those that live, in their order."""
        return tuple(self._of(process) for process in processes if process.is_living)

    def _of(self, process: Process) -> MemoryFacts:
        memory = process.memory
        windows = [step.window for step in process.windows]
        lengths = [w.end_ns - w.begin_ns for w in windows if w.end_ns is not None]
        samples = tuple(memory.trend.samples)
        sparse = tuple(map(tuple, memory.trend.sparse_samples.values()))
        has_changed = any(map(_has_changed, (samples, *sparse)))
        offloads = any(stage == _OFFLOAD for stage, _ in process.stamps) or any(
            name.startswith(HELD) for name in process.gauges
        )
        rows = device_rows(process.gauges)
        beside = memory.beside_allocator if len(rows) == 1 else None
        return MemoryFacts(
            process=process.id,
            step=process.step,
            step_seconds=max(1, median(lengths)) / 1e9 if lengths else None,
            samples=samples,
            sparse_samples=sparse,
            limits=self._limits.of(memory.groups) if has_changed else (),
            devices=tuple(
                DeviceUse(
                    r.device,
                    r.limit_bytes,
                    r.reserved_bytes,
                    memory.unused(r.device),
                    memory.kept(r.device) if offloads else (),
                    memory.allocated(r.device),
                    _peak(r),
                    beside.now_bytes if beside else None,
                    memory.allocated_before(r.device),
                )
                for r in rows
            ),
            heap=memory.heap.now,
        )


def _peak(row: DeviceMemory) -> float | None:
    told = [*row.stage_peak_bytes.values(), row.allocated_bytes]
    return max((num_bytes for num_bytes in told if num_bytes is not None), default=None)


def _has_changed(samples: Samples) -> bool:
    known = [num_bytes for _, num_bytes in samples]
    return bool(known) and max(known) - min(known) >= _LEAST_CHANGE_BYTES
