"""Whether a role runs out of memory: by steps until a limit is reached, not by a level.

Host: a process whose anonymous memory grows step after step, or at every so many, and the limit of
its control group, or the host itself, is reached within 10,000 steps or an hour. All processes of
the run that share a limit use it up together. Device: the allocator holds nearly all of it, and
what it holds without using it grows: the next step is a retried allocation or the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from dfx_agent.durations import age_text
from dfx_agent.host.memory import available_bytes, total_bytes
from dfx_agent.judge.words import labels_text
from dfx_agent.node.memory.gauges import device_rows
from dfx_agent.node.memory.growth import (
    MIN_STEPS,
    RISE_TO_STAY,
    SMALLEST_RISE,
    steady_bytes_per_step,
)
from dfx_agent.node.process import Process
from dfx_agent.snapshot import Verdict

HOST_LEAK, DEVICE_NEARLY_FULL = "host leak", "device nearly full"

MOST_STEPS_LEFT = 10_000
MOST_SECONDS_LEFT = 3600.0
NEARLY_FULL = 0.92
_LEAST_GAP_GROWTH = 0.02  # of the device, over the steps looked at
_LOOK_EVERY_SECONDS = 1.0
_MIB, _GIB = 2**20, 2**30


class Limit(NamedTuple):
    """What processes use up together; bytes."""

    words: str
    total_bytes: int
    free_bytes: int


class _Growing(NamedTuple):
    """A process that grows steadily."""

    process: Process
    bytes_per_step: float
    step_seconds: float
    samples: Sequence[tuple[int, float]]

    @property
    def bytes_per_second(self) -> float:
        return self.bytes_per_step / self.step_seconds


class MemoryWatch:
    """All roles of one run. Limits are read once a second at most, when somebody asks."""

    def __init__(self) -> None:
        self._limits: dict[str, Limit | None] = {}
        self._read_at = 0.0
        self._since: dict[tuple[str, str], float] = {}
        self._known: set[Process] = set()  # who grew steadily when it was last asked

    def verdicts(self, processes: Mapping[tuple[str, str], Process]) -> tuple[Verdict, ...]:
        """One for each role that has passed enough steps; ``processes`` by (role, label)."""
        self._forget_limits()
        living = [process for process in processes.values() if process.is_living]
        found = [_growing(process, is_known=process in self._known) for process in living]
        growing = [each for each in found if each is not None]
        self._known = {each.process for each in growing}
        roles = dict.fromkeys(process.filed_as.role for process in living)
        told = (self._of_role(role, living, growing) for role in roles)
        return tuple(verdict for verdict in told if verdict is not None)

    def _of_role(
        self, role: str, living: Sequence[Process], growing: Sequence[_Growing]
    ) -> Verdict | None:
        ranks = [process for process in living if process.filed_as.role == role]
        if not any(len(process.memory.trend.samples) >= MIN_STEPS for process in ranks):
            return None
        own = [each for each in growing if each.process.filed_as.role == role]
        own.sort(key=lambda each: (len(each.process.label), each.process.label))
        verdict = _device_verdict(role, ranks) or self._leak(role, own, growing)
        for key in [k for k in self._since if k[0] == role and k[1] != verdict.cause]:
            del self._since[key]
        if verdict.state != "found":
            return verdict
        since = self._since.setdefault((role, verdict.cause), time.time())
        return replace(verdict, since_seconds=since)

    def _leak(self, role: str, own: Sequence[_Growing], growing: Sequence[_Growing]) -> Verdict:
        reached = [
            (limit.free_bytes / sum(each.bytes_per_second for each in together), limit, one)
            for one in own
            for limit, together in self._shared(one, growing)
        ]
        if not reached:
            summary = "no process grows steadily"
            return Verdict("memory", "clear", role, summary)
        seconds, limit, first = min(reached, key=lambda each: each[0])
        steps = seconds / first.step_seconds
        left = f"{limit.words} is used up in about {steps:.0f} steps ({age_text(seconds)})"
        is_soon = steps <= MOST_STEPS_LEFT or seconds <= MOST_SECONDS_LEFT
        ranks = tuple(each.process.label for each in own)
        largest = max(each.bytes_per_step for each in own)
        verb = "keeps" if len(ranks) == 1 else "keep"
        return Verdict(
            kind="memory",
            state="found" if is_soon else "clear",
            role=role,
            summary=f"{labels_text(ranks)} {verb} {bytes_text(largest)} more a step: {left}",
            ranks=ranks if is_soon else (),
            cause=HOST_LEAK if is_soon else "",
            step=first.process.step,
            evidence=(*map(_growth_line, own[:8]), _limit_line(limit)),
        )

    def _shared(
        self, one: _Growing, growing: Sequence[_Growing]
    ) -> Iterable[tuple[Limit, list[_Growing]]]:
        """Each limit that this process meets, with all that use it up."""
        for group in one.process.memory.groups:
            limit = self._limit_of(group.path, one.process)
            if limit is not None:
                paths = ({g.path for g in each.process.memory.groups} for each in growing)
                yield limit, [e for e, p in zip(growing, paths, strict=True) if group.path in p]
        host = self._limit_of("", one.process)
        if host is not None:
            yield host, list(growing)

    def _limit_of(self, path: str, process: Process) -> Limit | None:
        if path not in self._limits:
            self._limits[path] = _read_limit(path, process)
        return self._limits[path]

    def _forget_limits(self) -> None:
        now = time.monotonic()
        if now - self._read_at >= _LOOK_EVERY_SECONDS:
            self._read_at = now
            self._limits.clear()


def _read_limit(path: str, process: Process) -> Limit | None:
    """Of the control group at ``path``, of the host for ""; None where there is none."""
    if not path:
        free, total = available_bytes(), total_bytes()
        return None if free is None or total is None else Limit("the host's memory", total, free)
    group = next(group for group in process.memory.groups if group.path == path)
    limit, used = group.limit_bytes(), group.used_bytes()
    if limit is None or used is None:
        return None
    return Limit("the memory limit of its control group", limit, max(0, limit - used))


def _growing(process: Process, *, is_known: bool) -> _Growing | None:
    """By its newest 64 steps, or by some of its newest 512: what leaks at each evaluation."""
    windows = [step.window for step in process.windows]
    lengths = [w.end_ns - w.begin_ns for w in windows if w.end_ns is not None]
    if not lengths:
        return None
    least_rise = RISE_TO_STAY if is_known else SMALLEST_RISE
    trend = process.memory.trend
    for samples in map(list, (trend.samples, *trend.sparse_samples.values())):
        per_step = steady_bytes_per_step(samples, smallest_rise=least_rise)
        if per_step:
            return _Growing(process, per_step, max(1, median(lengths)) / 1e9, samples)
    return None


def _device_verdict(role: str, ranks: Sequence[Process]) -> Verdict | None:
    """None while no device is nearly full with a gap that grows."""
    found = [
        (process, device, share)
        for process in ranks
        for device, share in _full_devices(process).items()
    ]
    if not found:
        return None
    labels = tuple(dict.fromkeys(process.label for process, _, _ in found))
    process, device, share = max(found, key=lambda each: each[2])
    return Verdict(
        kind="memory",
        state="found",
        role=role,
        summary=f"{labels_text(labels)}: the allocator holds {share:.0%} of {device}, and what it "
        "holds in pieces that are too small grows: out of memory is near",
        ranks=labels,
        cause=DEVICE_NEARLY_FULL,
        step=process.step,
        evidence=tuple(_gap_line(*each) for each in found[:8]),
    )


def _gap_line(process: Process, device: str, share: float) -> str:
    more = bytes_text(process.memory.gap_growth(device) or 0.0)
    return f"rank {process.label}: {share:.1%} of {device} held, {more} a step more not in use"


def _full_devices(process: Process) -> dict[str, float]:
    """Share held of each device that is nearly full, where the gap grows and nothing was retried.

    Retried allocations have an alert of their own.
    """
    full = {}
    for row in device_rows(process.gauges):
        if not row.limit_bytes or row.reserved_bytes is None:
            continue
        share = row.reserved_bytes / row.limit_bytes
        least = _LEAST_GAP_GROWTH * row.limit_bytes
        if share > NEARLY_FULL and (process.memory.gap_growth(row.device, least) or 0.0) > 0.0:
            full[row.device] = share
    return full


def _growth_line(each: _Growing) -> str:
    (first, before), (last, after) = each.samples[0], each.samples[-1]
    return (
        f"rank {each.process.label}: {bytes_text(before)} after step {first}, "
        f"{bytes_text(after)} after step {last}"
    )


def _limit_line(limit: Limit) -> str:
    return f"{limit.words}: {bytes_text(limit.total_bytes)}, {bytes_text(limit.free_bytes)} free"


def bytes_text(num_bytes: float) -> str:
    """As in "20.1 MiB", "8 GiB"."""
    unit, name = (_GIB, "GiB") if abs(num_bytes) >= _GIB else (_MIB, "MiB")
    return f"{num_bytes / unit:.3g} {name}"
