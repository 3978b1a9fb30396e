"""Device utilization, power and memory of one process in each of its stages.

Device samples are joined with the time account, which stops where a sample begins and ends. A
sample counts for each stage that covers at least half of it, so shorter stages have no row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dfx_agent.facts.steps import DeviceState
from dfx_agent.node.time.account import Split, TimeAccount
from dfx_agent.snapshot import StageDevice

_LEAST_SHARE = 0.5
_BUCKET_NS, _NUM_BUCKETS = 60 * 10**9, 15
_MOST_DUE = 64
_STATE_NS = 60 * 10**9


class Figures(NamedTuple):
    """Readings of all devices of one process; None if no device reported the value."""

    # mean over the devices
    utilization_ratio: float | None = None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    # sum over the devices
    power_watts: float | None = None
    used_bytes: float | None = None
    # mean over the devices
    clock_hertz: float | None = None
    throttled_ratio: float | None = None


class Sample(NamedTuple):
    """Device readings over one interval."""

    begin_ns: int
    end_ns: int  # when the devices were read
    figures: Figures
    throttles: tuple[str, ...] = ()  # reasons for throttling


class _Sums:
    """Time-weighted sums of Figures, by index of the field."""

    __slots__ = ("num_samples", "seconds", "times", "weighted")

    def __init__(self) -> None:
        self.num_samples, self.seconds = 0, 0.0
        self.weighted = [0.0] * len(Figures._fields)
        self.times = [0.0] * len(Figures._fields)

    def add(self, figures: Figures, seconds: float) -> None:
        self.num_samples += 1
        self.seconds += seconds
        for index, figure in enumerate(figures):
            if figure is not None:
                self.weighted[index] += figure * seconds
                self.times[index] += seconds

    def merge(self, other: _Sums) -> None:
        self.num_samples += other.num_samples
        self.seconds += other.seconds
        for index, seconds in enumerate(other.times):
            self.weighted[index] += other.weighted[index]
            self.times[index] += seconds

    def figures(self) -> Figures:
        pairs = zip(self.weighted, self.times, strict=True)
        return Figures(*(weighted / time if time else None for weighted, time in pairs))


class DeviceStages:
    """Device samples of one process, and their means by stage."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()  # as the machine names them, for example cuda:0
        self.model = ""  # as the vendor names it
        self.own_bytes: Mapping[str, float] = {}  # memory of this process, by device
        self._due: deque[Sample] = deque(maxlen=_MOST_DUE)
        self._at: tuple[int, dict[str, int]] | None = None  # time, and nanoseconds by stage
        self._buckets: deque[tuple[int, dict[str, _Sums]]] = deque(maxlen=_NUM_BUCKETS)
        self._recent: deque[Sample] = deque(maxlen=_MOST_DUE)
        self._stage_order: dict[str, int] = {}  # order in which stages were first seen

    def use(self, names: tuple[str, ...], own_bytes: Mapping[str, float], model: str = "") -> None:
        """Set the devices in use, and the memory that the driver reports for this process."""
        self.names, self.own_bytes, self.model = names, own_bytes, model

    def add(self, sample: Sample) -> None:
        """Add a sample, in order of time. It counts once its interval has been accounted."""
        if not self._due or sample.end_ns > self._due[-1].end_ns:
            self._due.append(sample)
            self._recent.append(sample)

    def advance(self, account: TimeAccount, until_ns: int) -> None:
        """Account the time up to ``until_ns``; stop wherever a sample begins or ends."""
        for at_ns in self._cuts(until_ns) if self._due else ():
            account.advance(at_ns)
            self._note(at_ns, account.totals())
        account.advance(until_ns)

    def _cuts(self, until_ns: int) -> list[int]:
        due = [sample for sample in self._due if sample.end_ns <= until_ns]
        last_ns = self._at[0] if self._at else -1
        bounds = {ns for sample in due for ns in (sample.begin_ns, sample.end_ns)}
        return sorted(ns for ns in bounds if ns > last_ns)

    def _note(self, at_ns: int, split: Split) -> None:
        now = by_stage(split)
        before, self._at = self._at, (at_ns, now)
        while self._due and self._due[0].end_ns <= at_ns:
            sample = self._due.popleft()
            if before is not None and sample.begin_ns == before[0] and sample.end_ns == at_ns:
                lengths = {stage: ns - before[1].get(stage, 0) for stage, ns in now.items()}
                self._count(sample, lengths)

    def rows(self) -> tuple[StageDevice, ...]:
        """One row per stage; empty without samples.

        Stages keep the order in which they were first seen: sorting by a value would reorder them
        from refresh to refresh.
        """
        sums_by_stage: dict[str, _Sums] = {}
        for _, sums_of_minute in self._buckets:
            for stage, sums in sums_of_minute.items():
                sums_by_stage.setdefault(stage, _Sums()).merge(sums)
        ordered = sorted(sums_by_stage.items(), key=lambda item: self._stage_order[item[0]])
        return tuple(
            StageDevice(stage, sums.num_samples, sums.seconds, *sums.figures())
            for stage, sums in ordered
        )

    def state(self) -> DeviceState | None:
        """Clock and throttling over the last minute of samples; None without samples."""
        if not self._recent:
            return None
        oldest_ns = self._recent[-1].end_ns - _STATE_NS
        lately = [sample for sample in self._recent if sample.end_ns > oldest_ns]
        sums = _Sums()
        for sample in lately:
            sums.add(sample.figures, (sample.end_ns - sample.begin_ns) / 1e9)
        means = sums.figures()
        reasons = dict.fromkeys(reason for sample in lately for reason in sample.throttles)
        return DeviceState(self.names, means.clock_hertz, means.throttled_ratio, tuple(reasons))

    def _count(self, sample: Sample, lengths: dict[str, int]) -> None:
        number = sample.end_ns // _BUCKET_NS
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, {}))
        sums = self._buckets[-1][1]
        least_ns = _LEAST_SHARE * (sample.end_ns - sample.begin_ns)
        for stage, length_ns in lengths.items():
            if length_ns and length_ns >= least_ns:
                self._stage_order.setdefault(stage, len(self._stage_order))
                sums.setdefault(stage, _Sums()).add(sample.figures, length_ns / 1e9)


def by_stage(split: Split) -> dict[str, int]:
    """Nanoseconds in each stage, including its waits; "" is the time outside all stages."""
    by_name = {"": split.idle_ns, **split.stages_ns}
    for (_, stage), length_ns in split.waits_ns.items():
        by_name[stage] = by_name.get(stage, 0) + length_ns
    return by_name


def merged(by_device: Sequence[Figures]) -> Figures:
    """Figures of a process from those of its devices."""

    def reported(index: int) -> list[float]:
        return [value for figures in by_device if (value := figures[index]) is not None]

    summed = {"power_watts", "used_bytes"}
    return Figures(*(
        _sum_or_mean(reported(index), is_sum=name in summed)
        for index, name in enumerate(Figures._fields)
    ))  # fmt: skip


def _sum_or_mean(values: Sequence[float], *, is_sum: bool) -> float | None:
    if not values:
        return None
    return sum(values) if is_sum else sum(values) / len(values)
