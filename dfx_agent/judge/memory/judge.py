"""Whether a role runs out of memory: by steps until a limit is reached, not by a level.

Host: a process whose anonymous memory grows step after step, or at every so many, and the limit of
its control group, or the host itself, is reached within 10,000 steps or an hour. All processes of
the run that share a limit use it up together. By 16 steps already where it is reached within ten
times as many. Device: what its tensors take grows at every step; or the allocator holds nearly all
of it, and what it holds without using it grows: the next step is a retried allocation or the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from dfx_agent.base.text import age_text, capitalized
from dfx_agent.facts.memory import (
    DeviceUse,
    MemoryFacts,
    MemoryLimit,
    Samples,
    highest_before,
)
from dfx_agent.facts.seat import ProcessId
from dfx_agent.judge.memory import sentences
from dfx_agent.judge.memory.device_leak import Place, device_leak
from dfx_agent.judge.memory.growth import (
    MIN_STEPS,
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
from dfx_agent.snapshot import GlibcHeap, Verdict

HOST_LEAK, DEVICE_NEARLY_FULL = "host leak", "device nearly full"
NOT_GIVEN_BACK = "memory not given back"

MOST_STEPS_LEFT = 10_000
MOST_SECONDS_LEFT = 3600.0
_URGENT_STEPS_LEFT = 10 * URGENT_STEPS
NEARLY_FULL = 0.92
# of the device, in each of so many rollouts in a row: less is no loss to an engine
_LEAST_KEPT_SHARE, _KEPT_STEPS = 0.1, 4
_LEAST_GAP_GROWTH = 0.02  # of the device, over the steps looked at
_MIB = 2**20
_MUCH_BYTES, _MUCH_SHARE = 256 * _MIB, 0.05  # that glibc keeps


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
        """The step since which it grows, by all samples that there are."""
        samples = (*chain(*self.facts.sparse_samples), *self.facts.samples, *self.samples)
        return begin_of_growth(samples, self.bytes_per_step)


class MemoryJudge:
    """All roles of one run; ``verdicts`` when somebody asks."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[float, int | None]] = {}
        self._begins: Begins = {}
        self._known: set[ProcessId] = set()  # who grew steadily when it was last asked
        self._known_devices: set[Place] = set()

    def verdicts(self, living: Sequence[MemoryFacts], now_seconds: float) -> tuple[Verdict, ...]:
        """One for each role that has passed enough steps, as of Unix time ``now_seconds``."""
        found = [_growing(facts, is_known=facts.process in self._known) for facts in living]
        growing = [each for each in found if each is not None]
        self._known = {each.facts.process for each in growing}
        self._known_devices &= {(f.process, d.device) for f in living for d in f.devices}
        roles = dict.fromkeys(facts.process.role for facts in living)
        told = (self._of_role(role, living, growing, now_seconds) for role in roles)
        return tuple(verdict for verdict in told if verdict is not None)

    def _of_role(
        self,
        role: str,
        living: Sequence[MemoryFacts],
        growing: Sequence[_Growing],
        now_seconds: float,
    ) -> Verdict | None:
        ranks = [facts for facts in living if facts.process.role == role]
        own = [each for each in growing if each.facts.process.role == role]
        of_devices = _of_devices(role, ranks, self._known_devices, self._begins, now_seconds)
        is_young = not any(len(facts.samples) >= MIN_STEPS for facts in ranks)
        if is_young and not own and of_devices is None:
            return None
        own.sort(key=lambda each: (len(each.facts.process.label), each.facts.process.label))
        host = _leak(role, own, growing, self._begins, now_seconds)
        verdict = host if of_devices is None else _beside(of_devices, host)
        for key in [k for k in self._since if k[0] == role and k[1] != verdict.cause]:
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
    known: set[Place],
    begins: Begins,
    now_seconds: float,
) -> Verdict | None:
    """What ends the job goes before what costs it room."""
    limits = MOST_STEPS_LEFT, MOST_SECONDS_LEFT
    leak = device_leak(role, ranks, limits, known, begins, now_seconds)
    found = [v for v in (_device_verdict(role, ranks), leak, _kept(role, ranks)) if v is not None]
    return _beside(*found) if found else None


def _beside(verdict: Verdict, *others: Verdict) -> Verdict:
    """A role has one verdict: what else was found is evidence in it."""
    told = (other.summary for other in others if other.state == "found")
    return replace(verdict, evidence=(*verdict.evidence, *told))


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
        (limit.free_bytes / sum(each.bytes_per_second for each in together), limit, one)
        for one in own
        for limit, together in _shared(one, growing)
    ]
    ranks = tuple(each.facts.process.label for each in own)
    most = max(own, key=lambda each: each.bytes_per_step)
    begin = begins.get((role, HOST_LEAK)) or most.begin()
    said = _growth_fields(ranks, most, begin)
    if not reached:
        return Verdict("memory", "insufficient evidence", role, sentences.LIMIT_UNKNOWN(**said))
    seconds, limit, first = min(reached, key=lambda each: each[0])
    steps = seconds / first.step_seconds
    name = capitalized(_words(limit))
    said |= {"limit": name, "steps": f"{steps:.0f}", "time": age_text(seconds)}
    if steps > MOST_STEPS_LEFT and seconds > MOST_SECONDS_LEFT:
        lines = _evidence(own, limit)
        return Verdict("memory", "clear", role, sentences.HOST_GROWTH_FAR(**said), evidence=lines)
    begins[role, HOST_LEAK] = begin  # it stays as it was when it was found
    return Verdict(
        kind="memory",
        state="found",
        role=role,
        summary=sentences.HOST_LEAK(**said),
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
    one: _Growing, growing: Sequence[_Growing]
) -> Iterable[tuple[MemoryLimit, list[_Growing]]]:
    """Each limit that this process meets, with all that use it up."""
    for limit in one.facts.limits:
        places = ({other.place for other in each.facts.limits} for each in growing)
        yield limit, [e for e, p in zip(growing, places, strict=True) if limit.place in p]


def _words(limit: MemoryLimit) -> str:
    return "the memory limit of its control group" if limit.path else "the host's memory"


def _growing(facts: MemoryFacts, *, is_known: bool) -> _Growing | None:
    """By its newest 64 steps, or by some of its newest 512: what leaks at each evaluation."""
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
    """By its newest 16 steps: where a limit is so near that more of them cannot be waited for."""
    before = [sample for samples in facts.sparse_samples for sample in samples]
    per_step = urgent_bytes_per_step(facts.samples, before)
    free_bytes = min((limit.free_bytes for limit in facts.limits), default=None)
    if not per_step or free_bytes is None or free_bytes > _URGENT_STEPS_LEFT * per_step:
        return None
    return _Growing(facts, per_step, step_seconds, facts.samples[-URGENT_STEPS:])


def _device_verdict(role: str, ranks: Sequence[MemoryFacts]) -> Verdict | None:
    """None while no device is nearly full with a gap that grows."""
    found = [
        (facts, device, share)
        for facts in ranks
        for device in facts.devices
        if (share := _full_share(device))
    ]
    if not found:
        return None
    labels = tuple(dict.fromkeys(facts.process.label for facts, _, _ in found))
    facts, device, share = max(found, key=lambda each: each[2])
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
        evidence=tuple(_gap_line(*each) for each in found[:8]),
    )


def _kept(role: str, ranks: Sequence[MemoryFacts]) -> Verdict | None:
    """Of ranks that offload: what stays with their allocator while they are offloaded."""
    found = [
        (num_bytes, facts, device)
        for facts in ranks
        for device in facts.devices
        if (num_bytes := _kept_bytes(device))
    ]
    if not found:
        return None
    labels = tuple(dict.fromkeys(facts.process.label for _, facts, _ in found))
    most, facts, device = max(found, key=lambda each: each[0])
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
        evidence=tuple(_kept_line(*each) for each in found[:8]),
        action=sentences.NOT_RELEASED.action,
    )


def _kept_line(num_bytes: float, facts: MemoryFacts, device: DeviceUse) -> str:
    share = num_bytes / (device.limit_bytes or num_bytes)
    return (
        f"rank {facts.process.label}: {bytes_text(num_bytes)}, {share:.0%} of {device.device}, "
        f"held and unused while offloaded in the last {_KEPT_STEPS} steps"
    )


def _kept_bytes(device: DeviceUse) -> float | None:
    """The least of the newest rollouts, where that is much of the device."""
    newest = [num_bytes for _, num_bytes in device.kept_samples[-_KEPT_STEPS:]]
    if len(newest) < _KEPT_STEPS or not device.limit_bytes:
        return None
    least = min(newest)
    return least if least >= _LEAST_KEPT_SHARE * device.limit_bytes else None


def _gap_line(facts: MemoryFacts, device: DeviceUse, share: float) -> str:
    more = bytes_text(steady_bytes_per_step(device.unused_samples, 0.0) or 0.0)
    return (
        f"{labels_text([facts.process.label])}: {share:.1%} of {device.device} held, "
        f"{more} a step more not in use"
    )


def _full_share(device: DeviceUse) -> float | None:
    """Share held of a device that is nearly full, where the gap grows and nothing was retried.

    Retried allocations have an alert of their own.
    """
    if not device.limit_bytes or device.reserved_bytes is None:
        return None
    share = device.reserved_bytes / device.limit_bytes
    least = _LEAST_GAP_GROWTH * device.limit_bytes
    grows = (steady_bytes_per_step(device.unused_samples, least) or 0.0) > 0.0
    return share if share > NEARLY_FULL and grows else None


def _growth_line(each: _Growing) -> str:
    (first, before), (last, after) = each.samples[0], each.samples[-1]
    return (
        f"{labels_text([each.facts.process.label])}: {bytes_text(before)} after step {first}, "
        f"{bytes_text(after)} after step {last}"
    )


def _heap_lines(own: Sequence[_Growing]) -> list[str]:
    """Of those of which glibc keeps much."""
    told = [(each, each.facts.heap, each.samples[-1][1]) for each in own]
    lines = [(each.facts.process.label, heap_text(heap, used)) for each, heap, used in told if heap]
    return [f"{labels_text([label])}: {text}" for label, text in lines if text][:8]


def heap_text(heap: GlibcHeap, anonymous_bytes: float) -> str:
    """What glibc keeps of a process' memory, "" where that is little; advice where it can go."""
    retained, trimmable = heap.retained_bytes, heap.trimmable_bytes
    if retained is None or retained < max(_MUCH_BYTES, _MUCH_SHARE * anonymous_bytes):
        return ""
    whole, other = anonymous_bytes, max(0.0, anonymous_bytes - heap.used_bytes - retained)
    kept = (
        f"of {bytes_text(whole)} glibc's malloc has given out {bytes_text(heap.used_bytes)} and "
        f"keeps {bytes_text(retained)} that was freed; {bytes_text(other)} are not malloc's "
        "(Python's small objects among them)"
    )
    if trimmable is None or trimmable < retained / 2:
        return f"{kept}; what it keeps is in pieces of less than a page, and cannot be given back"
    return f"{kept}; malloc_trim(0) would give back about {bytes_text(trimmable)}"


def _limit_line(limit: MemoryLimit) -> str:
    return f"{_words(limit)}: {bytes_text(limit.total_bytes)}, {bytes_text(limit.free_bytes)} free"
