"""Judges whether a role runs out of memory, by the number of steps until a limit is reached.

- Host: the anonymous memory of a process grows steadily, and the limit of its control group or of
  the host will be reached within 10,000 steps or an hour. Processes of the run that share a limit
  are added up. 16 steps are enough if the limit will be reached within 160 steps.
- Device: the memory of tensors grows steadily. Or the allocator holds nearly the whole device, and
  the unused part grows: soon an allocation is retried or fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from dfx_agent.base.text import age_text, bytes_text, capitalized
from dfx_agent.facts.memory import (
    DeviceUse,
    MemoryFacts,
    MemoryLimit,
    Samples,
    highest_before,
)
from dfx_agent.facts.seat import ProcessId
from dfx_agent.judge.memory import sentences
from dfx_agent.judge.memory.device_leak import DevicePlace, device_leak
from dfx_agent.judge.memory.growth import (
    MIN_STEPS,
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
from dfx_agent.snapshot import GlibcHeap, Verdict

HOST_LEAK, DEVICE_NEARLY_FULL = "host leak", "device nearly full"
NOT_GIVEN_BACK = "memory not given back"

MOST_STEPS_LEFT = 10_000
MOST_SECONDS_LEFT = 3600.0
_URGENT_STEPS_LEFT = 10 * URGENT_STEPS
NEARLY_FULL = 0.92
# unreleased share of the device, in each of so many rollouts in a row
_LEAST_UNRELEASED_SHARE, _UNRELEASED_STEPS = 0.1, 4
_LEAST_GAP_GROWTH = 0.02  # share of the device, over the checked steps
_MIB = 2**20
_MUCH_BYTES, _MUCH_SHARE = 256 * _MIB, 0.05  # memory that glibc retains


class _Growing(NamedTuple):
    """A process that grows steadily."""

    facts: MemoryFacts
    bytes_per_step: float
    step_seconds: float
    samples: Samples

    @property
    def bytes_per_second(self) -> float:
        return self.bytes_per_step / self.step_seconds

    def begin(self) -> Begin:
        """The step since which the memory grows, from all samples."""
        samples = (*chain(*self.facts.sparse_samples), *self.facts.samples, *self.samples)
        return begin_of_growth(samples, self.bytes_per_step)


class MemoryJudge:
    """Memory verdicts of all roles of one run."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[float, int | None]] = {}
        self._begins: Begins = {}
        self._growing_before: set[ProcessId] = set()  # processes that grew at the last call
        self._growing_devices: set[DevicePlace] = set()

    def verdicts(self, living: Sequence[MemoryFacts], now_seconds: float) -> tuple[Verdict, ...]:
        """One verdict for each role with enough steps. ``now_seconds``: Unix time."""
        found = [
            _growing(facts, is_known=facts.process in self._growing_before) for facts in living
        ]
        growing = [process for process in found if process is not None]
        self._growing_before = {process.facts.process for process in growing}
        self._growing_devices &= {
            (facts.process, device.device) for facts in living for device in facts.devices
        }
        roles = dict.fromkeys(facts.process.role for facts in living)
        verdicts = (self._of_role(role, living, growing, now_seconds) for role in roles)
        return tuple(verdict for verdict in verdicts if verdict is not None)

    def _of_role(
        self,
        role: str,
        living: Sequence[MemoryFacts],
        growing: Sequence[_Growing],
        now_seconds: float,
    ) -> Verdict | None:
        ranks = [facts for facts in living if facts.process.role == role]
        own = [process for process in growing if process.facts.process.role == role]
        of_devices = _of_devices(role, ranks, self._growing_devices, self._begins, now_seconds)
        is_young = not any(len(facts.samples) >= MIN_STEPS for facts in ranks)
        if is_young and not own and of_devices is None:
            return None
        own.sort(
            key=lambda process: (len(process.facts.process.label), process.facts.process.label)
        )
        host = _leak(role, own, growing, self._begins, now_seconds)
        verdict = host if of_devices is None else _combined(of_devices, host)
        outdated = [key for key in self._since if key[0] == role and key[1] != verdict.cause]
        for key in outdated:
            del self._since[key]
            self._begins.pop(key, None)
        if verdict.state != "found":
            return verdict
        begin = verdict.since_seconds or now_seconds, verdict.step
        since, step = self._since.setdefault((role, verdict.cause), begin)
        return replace(verdict, since_seconds=since, step=step)


def _of_devices(
    role: str,
    ranks: Sequence[MemoryFacts],
    growing_before: set[DevicePlace],
    begins: Begins,
    now_seconds: float,
) -> Verdict | None:
    """The device verdict of a role. A full device comes before memory that is not released."""
    limits = MOST_STEPS_LEFT, MOST_SECONDS_LEFT
    leak = device_leak(role, ranks, limits, growing_before, begins, now_seconds)
    verdicts = (_device_verdict(role, ranks), leak, _not_released(role, ranks))
    found = [verdict for verdict in verdicts if verdict is not None]
    return _combined(*found) if found else None


def _combined(verdict: Verdict, *others: Verdict) -> Verdict:
    """One verdict for a role: other findings become evidence of the first."""
    summaries = (other.summary for other in others if other.state == "found")
    return replace(verdict, evidence=(*verdict.evidence, *summaries))


def _leak(
    role: str,
    own: Sequence[_Growing],
    growing: Sequence[_Growing],
    begins: Begins,
    now_seconds: float,
) -> Verdict:
    if not own:
        return Verdict("memory", "clear", role, sentences.NOTHING_GROWS())
    reached = [
        (limit.free_bytes / sum(other.bytes_per_second for other in sharing), limit, process)
        for process in own
        for limit, sharing in _shared(process, growing)
    ]
    ranks = tuple(process.facts.process.label for process in own)
    most = max(own, key=lambda process: process.bytes_per_step)
    begin = begins.get((role, HOST_LEAK)) or most.begin()
    fields = _growth_fields(ranks, most, begin)
    if not reached:
        return Verdict("memory", "insufficient evidence", role, sentences.LIMIT_UNKNOWN(**fields))
    seconds, limit, first = min(reached, key=lambda row: row[0])
    steps = seconds / first.step_seconds
    name = capitalized(_words(limit))
    fields |= {"limit": name, "steps": f"{steps:.0f}", "time": age_text(seconds)}
    if steps > MOST_STEPS_LEFT and seconds > MOST_SECONDS_LEFT:
        lines = _evidence(own, limit)
        return Verdict("memory", "clear", role, sentences.HOST_GROWTH_FAR(**fields), evidence=lines)
    begins[role, HOST_LEAK] = begin  # the begin of a finding does not change
    return Verdict(
        kind="memory",
        state="found",
        role=role,
        summary=sentences.HOST_LEAK(**fields),
        ranks=ranks,
        cause=HOST_LEAK,
        step=begin.step,
        since_seconds=seconds_of(most.facts, begin.step, now_seconds),
        evidence=_evidence(own, limit),
    )


def _growth_fields(ranks: Sequence[str], most: _Growing, begin: Begin) -> dict[str, object]:
    return {
        "ranks": capitalized(labels_text(ranks)),
        "have": "has" if len(ranks) == 1 else "have",
        "amount": bytes_text(most.bytes_per_step),
        "since": begin,
    }


def _evidence(own: Sequence[_Growing], limit: MemoryLimit) -> tuple[str, ...]:
    return (*map(_growth_line, own[:8]), *_heap_lines(own), _limit_line(limit))


def _shared(
    process: _Growing, growing: Sequence[_Growing]
) -> Iterable[tuple[MemoryLimit, list[_Growing]]]:
    """Each limit of this process, with all growing processes that share it."""
    for limit in process.facts.limits:
        yield (
            limit,
            [
                other
                for other in growing
                if any(limit.place == shared.place for shared in other.facts.limits)
            ],
        )


def _words(limit: MemoryLimit) -> str:
    return "the memory limit of its control group" if limit.path else "the host's memory"


def _growing(facts: MemoryFacts, *, is_known: bool) -> _Growing | None:
    """The growth of a process by its last 64 steps, or by a selection of its last 512 steps."""
    if facts.step_seconds is None:
        return None
    least_rise = RISE_TO_STAY if is_known else SMALLEST_RISE
    for samples in (facts.samples, *facts.sparse_samples):
        per_step = steady_bytes_per_step(samples, smallest_rise=least_rise)
        if per_step and is_higher_than_before(samples, _highest(facts, samples[0][0])):
            return _Growing(facts, per_step, facts.step_seconds, samples)
    return _urgent(facts, facts.step_seconds)


def _highest(facts: MemoryFacts, step: int) -> float | None:
    return highest_before(step, facts.samples, *facts.sparse_samples)


def _urgent(facts: MemoryFacts, step_seconds: float) -> _Growing | None:
    """The growth of a process by its last 16 steps, if a limit is near."""
    before = [sample for samples in facts.sparse_samples for sample in samples]
    per_step = urgent_bytes_per_step(facts.samples, before)
    free_bytes = min((limit.free_bytes for limit in facts.limits), default=None)
    if not per_step or free_bytes is None or free_bytes > _URGENT_STEPS_LEFT * per_step:
        return None
    return _Growing(facts, per_step, step_seconds, facts.samples[-URGENT_STEPS:])


def _device_verdict(role: str, ranks: Sequence[MemoryFacts]) -> Verdict | None:
    """The finding on devices that are nearly full with growing unused memory; else None."""
    found = [
        (facts, device, share)
        for facts in ranks
        for device in facts.devices
        if (share := _full_share(device))
    ]
    if not found:
        return None
    labels = tuple(dict.fromkeys(facts.process.label for facts, _, _ in found))
    facts, device, share = max(found, key=lambda row: row[2])
    return Verdict(
        kind="memory",
        state="found",
        role=role,
        summary=sentences.DEVICE_NEARLY_FULL(
            ranks=labels_text(labels), share=f"{share:.0%}", device=device.device
        ),
        ranks=labels,
        cause=DEVICE_NEARLY_FULL,
        step=facts.step,
        evidence=tuple(_gap_line(*row) for row in found[:8]),
    )


def _not_released(role: str, ranks: Sequence[MemoryFacts]) -> Verdict | None:
    """The finding on offloaded ranks whose allocator still holds memory; else None."""
    found = [
        (num_bytes, facts, device)
        for facts in ranks
        for device in facts.devices
        if (num_bytes := _unreleased_bytes(device))
    ]
    if not found:
        return None
    labels = tuple(dict.fromkeys(facts.process.label for _, facts, _ in found))
    most, facts, device = max(found, key=lambda row: row[0])
    is_one = len(labels) == 1
    return Verdict(
        kind="memory",
        state="found",
        role=role,
        summary=sentences.NOT_RELEASED(
            ranks=capitalized(labels_text(labels)),
            hold="holds" if is_one else "hold",
            use="uses" if is_one else "use",
            amount=bytes_text(most),
            device=device.device,
        ),
        ranks=labels,
        stage="rollout",
        cause=NOT_GIVEN_BACK,
        step=facts.step,
        evidence=tuple(_unreleased_line(*row) for row in found[:8]),
        action=sentences.NOT_RELEASED.action,
    )


def _unreleased_line(num_bytes: float, facts: MemoryFacts, device: DeviceUse) -> str:
    share = num_bytes / (device.limit_bytes or num_bytes)
    return (
        f"rank {facts.process.label}: {bytes_text(num_bytes)}, {share:.0%} of {device.device}, "
        f"held and unused while offloaded in the last {_UNRELEASED_STEPS} steps"
    )


def _unreleased_bytes(device: DeviceUse) -> float | None:
    """The smallest value of the last rollouts, if it is a large part of the device."""
    latest = [num_bytes for _, num_bytes in device.offloaded_samples[-_UNRELEASED_STEPS:]]
    if len(latest) < _UNRELEASED_STEPS or not device.limit_bytes:
        return None
    least = min(latest)
    return least if least >= _LEAST_UNRELEASED_SHARE * device.limit_bytes else None


def _gap_line(facts: MemoryFacts, device: DeviceUse, share: float) -> str:
    more = bytes_text(steady_bytes_per_step(device.unused_samples, 0.0) or 0.0)
    return (
        f"{labels_text([facts.process.label])}: {share:.1%} of {device.device} held, "
        f"{more} a step more not in use"
    )


def _full_share(device: DeviceUse) -> float | None:
    """Share of a nearly full device that the allocator holds; None unless the unused part grows."""
    if not device.limit_bytes or device.reserved_bytes is None:
        return None
    share = device.reserved_bytes / device.limit_bytes
    least = _LEAST_GAP_GROWTH * device.limit_bytes
    grows = (steady_bytes_per_step(device.unused_samples, least) or 0.0) > 0.0
    return share if share > NEARLY_FULL and grows else None


def _growth_line(process: _Growing) -> str:
    (first, before), (last, after) = process.samples[0], process.samples[-1]
    return (
        f"{labels_text([process.facts.process.label])}: {bytes_text(before)} after step {first}, "
        f"{bytes_text(after)} after step {last}"
    )


def _heap_lines(own: Sequence[_Growing]) -> list[str]:
    """Evidence: processes in which glibc retains much memory."""
    lines = [
        (process.facts.process.label, heap_text(process.facts.heap, process.samples[-1][1]))
        for process in own
        if process.facts.heap
    ]
    return [f"{labels_text([label])}: {text}" for label, text in lines if text][:8]


def heap_text(heap: GlibcHeap, anonymous_bytes: float) -> str:
    """How much freed memory glibc retains, with advice; "" if it is little."""
    retained, trimmable = heap.retained_bytes, heap.trimmable_bytes
    if retained is None or retained < max(_MUCH_BYTES, _MUCH_SHARE * anonymous_bytes):
        return ""
    other = max(0.0, anonymous_bytes - heap.used_bytes - retained)
    text = (
        f"of {bytes_text(anonymous_bytes)}, {bytes_text(heap.used_bytes)} are allocated by glibc's "
        f"malloc, {bytes_text(retained)} are freed but retained by it, and {bytes_text(other)} are "
        "not malloc's (for example Python's small objects)"
    )
    if trimmable is None or trimmable < retained / 2:
        return f"{text}; the retained pieces are smaller than a page and cannot be returned"
    return f"{text}; malloc_trim(0) would return about {bytes_text(trimmable)}"


def _limit_line(limit: MemoryLimit) -> str:
    return f"{_words(limit)}: {bytes_text(limit.total_bytes)}, {bytes_text(limit.free_bytes)} free"
