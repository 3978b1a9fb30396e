"""What the devices of one process did in each of its stages: samples joined with its time account.

The account stops where a sample begins and ends, so what a sample lay in is exact. A sample counts
for a stage that had at least half of it: a stage that is shorter than that is not told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dfx_agent.facts.devices import DeviceState
from dfx_agent.node.time.account import Split, TimeAccount
from dfx_agent.snapshot import StageDevice

_LEAST_SHARE = 0.5
_BUCKET_NS, _NUM_BUCKETS = 60 * 10**9, 15
_MOST_DUE = 64
_STATE_NS = 60 * 10**9


class Figures(NamedTuple):
    """Of the devices of one process; None is what none of them told.

    Shares and the clock are means over them, power and memory are sums.
    """

    utilization_ratio: float | None = None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    power_watts: float | None = None
    used_bytes: float | None = None
    clock_hertz: float | None = None
    throttled_ratio: float | None = None


class Sample(NamedTuple):
    """What was read at ``end_ns``, over the time since ``begin_ns``; ``throttles``: why."""

    begin_ns: int
    end_ns: int
    figures: Figures
    throttles: tuple[str, ...] = ()


class _Sums:
    """Figures weighted with the time that they are of, by their place in Figures."""

    __slots__ = ("num_samples", "seconds", "times", "weighted")

    def __init__(self) -> None:
        self.num_samples, self.seconds = 0, 0.0
        self.weighted = [0.0] * len(Figures._fields)
        self.times = [0.0] * len(Figures._fields)

    def add(self, figures: Figures, seconds: float) -> None:
        self.num_samples += 1
        self.seconds += seconds
        for place, figure in enumerate(figures):
            if figure is not None:
                self.weighted[place] += figure * seconds
                self.times[place] += seconds

    def merge(self, other: _Sums) -> None:
        self.num_samples += other.num_samples
        self.seconds += other.seconds
        for place, seconds in enumerate(other.times):
            self.weighted[place] += other.weighted[place]
            self.times[place] += seconds

    def figures(self) -> Figures:
        pairs = zip(self.weighted, self.times, strict=True)
        return Figures(*(weighted / time if time else None for weighted, time in pairs))


class DeviceStages:
    """Of one process; ``names``: its devices as the machine calls them, ``model`` as the vendor."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.model = ""
        self.own_bytes: Mapping[str, float] = {}
        self._due: deque[Sample] = deque(maxlen=_MOST_DUE)
        self._at: tuple[int, dict[str, int]] | None = None  # when, and time by stage up to then
        self._buckets: deque[tuple[int, dict[str, _Sums]]] = deque(maxlen=_NUM_BUCKETS)
        self._newest: deque[Sample] = deque(maxlen=_MOST_DUE)
        self._places: dict[str, int] = {}  # of stages, in the order in which they were first seen

    def use(self, names: tuple[str, ...], own_bytes: Mapping[str, float], model: str = "") -> None:
        """Those that it uses now, and what it has on them where the driver says so."""
        self.names, self.own_bytes, self.model = names, own_bytes, model

    def add(self, sample: Sample) -> None:
        """In the order of time; it counts when the process is accounted up to its end."""
        if not self._due or sample.end_ns > self._due[-1].end_ns:
            self._due.append(sample)
            self._newest.append(sample)

    def advance(self, account: TimeAccount, until_ns: int) -> None:
        """Account the time up to then, and stop where samples begin and end."""
        for at_ns in self._cuts(until_ns) if self._due else ():
            account.advance(at_ns)
            self._note(at_ns, account.totals())
        account.advance(until_ns)

    def _cuts(self, until_ns: int) -> list[int]:
        due = [sample for sample in self._due if sample.end_ns <= until_ns]
        known_ns = self._at[0] if self._at else -1
        return sorted({ns for s in due for ns in (s.begin_ns, s.end_ns) if ns > known_ns})

    def _note(self, at_ns: int, split: Split) -> None:
        now = by_stage(split)
        before, self._at = self._at, (at_ns, now)
        while self._due and self._due[0].end_ns <= at_ns:
            sample = self._due.popleft()
            if before is not None and sample.begin_ns == before[0] and sample.end_ns == at_ns:
                self._count(sample, {k: ns - before[1].get(k, 0) for k, ns in now.items()})

    def rows(self) -> tuple[StageDevice, ...]:
        """Of each stage, in the order in which they were first seen; empty without samples.

        Not by a figure: stages that are about as long would swap places from look to look.
        """
        whole: dict[str, _Sums] = {}
        for _, sums in self._buckets:
            for stage, some in sums.items():
                whole.setdefault(stage, _Sums()).merge(some)
        ordered = sorted(whole.items(), key=lambda item: self._places[item[0]])
        return tuple(
            StageDevice(stage, sums.num_samples, sums.seconds, *sums.figures())
            for stage, sums in ordered
        )

    def state(self) -> DeviceState | None:
        """Over the last minute of samples; None without any."""
        if not self._newest:
            return None
        least_ns = self._newest[-1].end_ns - _STATE_NS
        lately = [sample for sample in self._newest if sample.end_ns > least_ns]
        sums = _Sums()
        for sample in lately:
            sums.add(sample.figures, (sample.end_ns - sample.begin_ns) / 1e9)
        told = sums.figures()
        reasons = dict.fromkeys(reason for sample in lately for reason in sample.throttles)
        return DeviceState(self.names, told.clock_hertz, told.throttled_ratio, tuple(reasons))

    def _count(self, sample: Sample, lengths: dict[str, int]) -> None:
        number = sample.end_ns // _BUCKET_NS
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, {}))
        sums = self._buckets[-1][1]
        least_ns = _LEAST_SHARE * (sample.end_ns - sample.begin_ns)
        for stage, length_ns in lengths.items():
            if length_ns and length_ns >= least_ns:
                self._places.setdefault(stage, len(self._places))
                sums.setdefault(stage, _Sums()).add(sample.figures, length_ns / 1e9)


def by_stage(split: Split) -> dict[str, int]:
    """Nanoseconds in each stage, waits in it included; "" is outside all."""
    found = {"": split.idle_ns, **split.stages_ns}
    for (_, stage), length_ns in split.waits_ns.items():
        found[stage] = found.get(stage, 0) + length_ns
    return found


def merged(of_devices: Sequence[Figures]) -> Figures:
    """Of all devices of a process."""

    def told(place: int) -> list[float]:
        return [value for figures in of_devices if (value := figures[place]) is not None]

    summed = {"power_watts", "used_bytes"}
    return Figures(*(
        _sum_or_mean(told(place), is_sum=name in summed)
        for place, name in enumerate(Figures._fields)
    ))  # fmt: skip


def _sum_or_mean(values: Iterable[float], *, is_sum: bool) -> float | None:
    known = list(values)
    if not known:
        return None
    return sum(known) if is_sum else sum(known) / len(known)
