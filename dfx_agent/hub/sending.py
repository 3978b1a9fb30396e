"""Selects the facts of one run that a node sends to a hub: first all facts, then only new ones.

After a restart a hub asks for all facts again. The node stores a bounded number of them for that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from statistics import median
from typing import Generic, NamedTuple, TypeVar

from dfx_agent.facts.layout import NO_LAYOUT, Layout
from dfx_agent.facts.ledger import LedgerNews
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.memory import DeviceUse, MemoryFacts, Samples
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.scalars import ReportedScalars
from dfx_agent.facts.seat import ROLLOUT_SIDE, ProcessId, Seat
from dfx_agent.facts.short_steps import mean_step
from dfx_agent.facts.stacks import ProcessStacks
from dfx_agent.facts.steps import LEAST_SECONDS, RoleSteps, Step
from dfx_agent.hub import rounding
from dfx_agent.snapshot import EngineFacts

_KEEP_STEPS, _KEEP_REPORTS = 64, 256
# totals of a living rank are sent in this interval, of ranks that make samples or have an event
# loop more often: a pipeline is judged by them
_TOTALS_EVERY_NS, _TOTALS_OF_ROLLOUT_EVERY_NS = 60 * 10**9, 5 * 10**9
# one engine has hundreds of numbers
_ENGINES_EVERY_NS = 5 * 10**9
_MOST_OPERATIONS, _MOST_FRAMES = 64, 64
_MEMORY_STEPS = 16
_MOST_BITS = 10  # lowest bits of the step number that may differ in a chunk
# limits depend on the median and the maximum: send new durations if these change by more
_ENOUGH_DURATIONS, _SAME_SHARE = 16, 0.1

_Item = TypeVar("_Item")
_OfProcess = TypeVar("_OfProcess", ReportedScalars, LedgerNews)


class UnsentItems(Generic[_Item]):
    """The latest items of one kind, in order; ``news`` returns an item once."""

    def __init__(self, num_stored: int) -> None:
        self._items: deque[_Item] = deque(maxlen=num_stored)
        self._num_new = 0

    def add(self, items: Iterable[_Item]) -> None:
        before = len(self._items)
        new = list(items)
        self._items += new
        self._num_new = min(self._num_new + len(new), len(self._items), before + len(new))

    @property
    def has_news(self) -> bool:
        return self._num_new > 0

    def news(self, *, is_full: bool) -> tuple[_Item, ...]:
        """Items added since the last call; all stored items if ``is_full``."""
        num_sent = 0 if is_full else len(self._items) - self._num_new
        self._num_new = 0
        return tuple(islice(self._items, num_sent, None))


class _SentTotals(NamedTuple):
    totals: RankTotals
    first_ns: int
    """When the first totals of this process were sent."""
    sent_ns: int
    is_final: bool
    """Whether its process had ended."""


class UnsentFacts:
    """Facts of one run. ``add`` every reading; the other methods return unsent facts once."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, UnsentItems[Step]] = defaultdict(
            partial(UnsentItems, _KEEP_STEPS)
        )
        self._scalars: UnsentItems[ReportedScalars] = UnsentItems(_KEEP_REPORTS)
        self._batches: UnsentItems[LedgerNews] = UnsentItems(_KEEP_REPORTS)
        self._ranks: dict[tuple[str, str, int], RankFacts] = {}
        self._memory: dict[ProcessId, MemoryFacts] = {}
        self._seats: dict[ProcessId, Seat] = {}
        self._totals: dict[ProcessId, _SentTotals] = {}
        self._engines: tuple[tuple[EngineFacts, ...], int] = (), 0  # with the time of sending
        self._chunks: dict[str, StepChunks] = {}
        self._layouts: dict[str, Layout] = {}

    def add(self, facts: RunFacts) -> None:
        """Add the facts of one reading."""
        for role_steps in facts.steps:
            chunks = self._chunks.setdefault(role_steps.role, StepChunks()).join(role_steps.steps)
            self._steps[role_steps.role].add(map(rounding.step, chunks))
        self._scalars.add(map(rounding.scalars, facts.scalars))
        self._batches.add(map(rounding.batches, facts.batches))

    def has_news(self, seats: Iterable[Seat]) -> bool:
        """Whether a step was closed or a process changed since the last report."""
        is_stepped = any(steps.has_news for steps in self._steps.values())
        return is_stepped or {seat.id: seat for seat in seats} != self._seats

    def role(self, facts: RoleSteps, *, is_full: bool) -> RoleSteps:
        """Facts of a role with its unsent steps, and its layout if that has changed."""
        sent_layout = self._layouts.get(facts.role)
        self._layouts[facts.role] = facts.layout
        coverage = facts.coverage_ratio
        unsent = replace(
            facts,
            steps=self._steps[facts.role].news(is_full=is_full),
            coverage_ratio=None if coverage is None else round(coverage, 3),
        )
        is_sent = not is_full and sent_layout == facts.layout
        return replace(unsent, layout=NO_LAYOUT) if is_sent else unsent

    def scalars(self, *, is_full: bool) -> tuple[ReportedScalars, ...]:
        return tuple(_joined(self._scalars.news(is_full=is_full), _with_scalars))

    def batches(self, *, is_full: bool) -> tuple[LedgerNews, ...]:
        return tuple(_joined(self._batches.news(is_full=is_full), _with_batches))

    def ranks(
        self, role: str, ranks: Iterable[RankFacts], *, is_full: bool
    ) -> tuple[RankFacts, ...]:
        """Current ranks; for a process that was sent before, only what is new."""
        unsent, current = [], {}
        for rank in ranks:
            rounded = replace(rounding.rank(rank), stacks=_main_thread(rank.stacks))
            key = role, rank.label, rank.begin_ns
            before = None if is_full else self._ranks.get(key)
            if before is None or _constants(before) != _constants(rounded):
                unsent.append(rounded)
                current[key] = rounded
            else:
                learned = _learned(before, rounded)
                unsent.append(_since(before, learned))
                current[key] = learned
        others = {key: rank for key, rank in self._ranks.items() if key[0] != role}
        self._ranks = {**others, **current}
        return tuple(unsent)

    def seats(
        self, seats: Iterable[Seat], *, is_full: bool
    ) -> tuple[tuple[Seat, ...], tuple[ProcessId, ...]]:
        """(Processes that are new or have changed, processes that were removed)."""
        current = {seat.id: seat for seat in seats}
        before, self._seats = {} if is_full else self._seats, current
        changed = tuple(seat for key, seat in current.items() if before.get(key) != seat)
        return changed, tuple(key for key in before if key not in current)

    def totals(
        self,
        processes: Iterable[ProcessId],
        read: Callable[[ProcessId], RankTotals | None],
        now_ns: int,
        *,
        is_full: bool,
    ) -> tuple[RankTotals, ...]:
        """Totals that have changed, of a living rank at most once in 60 s, or 5 s for samples.

        At first they are sent after 5, 10, 20, 40 and 80 s: totals at the start say nothing.

        ``read``: called only for processes whose totals are due.
        """
        before, self._totals = {} if is_full else self._totals, {}
        changed = []
        for process in processes:
            sent = before.get(process)
            if sent is not None and not self._are_due(process, sent, now_ns):
                self._totals[process] = sent
            elif (totals := read(process)) is not None:
                rounded, is_final = rounding.totals(totals), not self._is_living(process)
                first_ns = now_ns if sent is None else sent.first_ns
                self._totals[process] = _SentTotals(rounded, first_ns, now_ns, is_final)
                if sent is None or sent.totals != rounded:
                    changed.append(rounded)
        return tuple(changed)

    def _are_due(self, process: ProcessId, sent: _SentTotals, now_ns: int) -> bool:
        if not self._is_living(process):
            return not sent.is_final
        is_frequent = process.role in ROLLOUT_SIDE or sent.totals.event_loop is not None
        every_ns = _TOTALS_OF_ROLLOUT_EVERY_NS if is_frequent else _TOTALS_EVERY_NS
        age_ns = max(_TOTALS_OF_ROLLOUT_EVERY_NS, sent.sent_ns - sent.first_ns)
        return now_ns - sent.sent_ns >= min(every_ns, age_ns)

    def _is_living(self, process: ProcessId) -> bool:
        """As in the report that ``seats`` has begun."""
        seat = self._seats.get(process)
        return seat is not None and seat.is_living

    def engines(
        self, engines: Iterable[EngineFacts], now_ns: int, *, is_full: bool
    ) -> tuple[EngineFacts, ...] | None:
        """All engines if they have changed, at most once in 5 s, else None."""
        sent, sent_ns = self._engines
        if not is_full and now_ns - sent_ns < _ENGINES_EVERY_NS:
            return None
        rounded = tuple(map(rounding.engine, engines))
        if rounded == sent and not is_full:
            return None
        self._engines = rounded, now_ns
        return rounded

    def memory(self, facts: Iterable[MemoryFacts], *, is_full: bool) -> tuple[MemoryFacts, ...]:
        """Memory of processes with at least 16 new steps since the last report."""
        current = {memory.process: memory for memory in facts}
        sent = {p: memory for p, memory in self._memory.items() if p in current and not is_full}
        due = [m for m in current.values() if _is_due(sent.get(m.process), m)]
        self._memory = {**sent, **{memory.process: memory for memory in due}}
        return tuple(_grown(sent.get(memory.process), memory) for memory in due)


def _joined(
    items: Iterable[_OfProcess], join: Callable[[_OfProcess, _OfProcess], _OfProcess | None]
) -> Iterable[_OfProcess]:
    """One item per process instead of one per reading, if ``join`` can merge them."""
    found: dict[ProcessId, list[_OfProcess]] = {}
    for item in items:
        joined_items = found.setdefault(item.process, [])
        both = join(joined_items[-1], item) if joined_items else None
        if both is None:
            joined_items.append(item)
        else:
            joined_items[-1] = both
    return chain.from_iterable(found.values())


def _with_scalars(before: ReportedScalars, now: ReportedScalars) -> ReportedScalars | None:
    both = replace(now, scalars=(*before.scalars, *now.scalars))
    return both if replace(before, scalars=both.scalars) == both else None


def _with_batches(before: LedgerNews, now: LedgerNews) -> LedgerNews | None:
    if before.num_lost != now.num_lost:
        return None
    return replace(
        now,
        steps=tuple(dict.fromkeys((*before.steps, *now.steps))),
        completed=(*before.completed, *now.completed),
        given_up=(*before.given_up, *now.given_up),
    )


def newer(before: Sequence[_Item], now: Sequence[_Item]) -> tuple[_Item, ...]:
    """Items appended since ``before``; old items may have been dropped from the front."""
    for num_new in range(len(now) + 1):
        same = now[: len(now) - num_new]
        if len(same) <= len(before) and tuple(same) == tuple(before[len(before) - len(same) :]):
            return tuple(now[len(same) :])
    return tuple(now)


def _constants(rank: RankFacts) -> tuple[object, ...]:
    return rank.pid, rank.parent_pid, rank.world_size, rank.seconds_before_guest


def _since(before: RankFacts, now: RankFacts) -> RankFacts:
    """Changes of a rank. ``begin_ns`` 0 means that constant fields were sent before."""
    fresh = [key for key in now.operations if key not in before.operations]
    return replace(
        now,
        begin_ns=0,
        parent_pid=None,
        world_size=1,
        seconds_before_guest=0.0,
        step_durations=newer(before.step_durations, now.step_durations),
        stage_durations=_newer_of(before.stage_durations, now.stage_durations),
        collective_durations=_newer_of(before.collective_durations, now.collective_durations),
        operations={key: now.operations[key] for key in fresh[-_MOST_OPERATIONS:]},
        stacks=None if before.stacks == now.stacks else now.stacks,
        flight=None if before.flight == now.flight else now.flight,
    )


def _learned(before: RankFacts, now: RankFacts) -> RankFacts:
    """The rank with the durations sent last, if newer ones do not change a learned limit."""
    return replace(
        now,
        stage_durations=_learned_durations(before.stage_durations, now.stage_durations),
        collective_durations=_learned_durations(
            before.collective_durations, now.collective_durations
        ),
    )


def _learned_durations(
    before: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    return {
        name: sent if _is_learned(sent := before.get(name, ()), current) else current
        for name, current in now.items()
    }


def _is_learned(sent: tuple[int, ...], current: tuple[int, ...]) -> bool:
    """Whether the sent durations have about the median and maximum of the current ones."""
    if sent == current:
        return True
    if len(sent) < _ENOUGH_DURATIONS:
        return False
    both = (median(sent), median(current)), (max(sent), max(current))
    return all(abs(b - a) <= _SAME_SHARE * a for a, b in both)


def _newer_of(
    before: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    found = {name: newer(before.get(name, ()), durations) for name, durations in now.items()}
    return {name: durations for name, durations in found.items() if durations}


def _is_due(before: MemoryFacts | None, now: MemoryFacts) -> bool:
    """Whether there are 16 new steps: memory is judged over tens of steps."""
    if before is None:
        return True
    latest = before.samples[-1][0] if before.samples else -1
    return sum(step > latest for step, _ in now.samples) >= _MEMORY_STEPS


def _grown(before: MemoryFacts | None, now: MemoryFacts) -> MemoryFacts:
    if before is None:
        return now
    sparse = (
        _after(sent[-1:], samples)
        for sent, samples in zip(before.sparse_samples, now.sparse_samples, strict=False)
    )
    sent = {device.device: device for device in before.devices}
    return replace(
        now,
        samples=_after(before.samples[-1:], now.samples),
        sparse_samples=(*sparse, *now.sparse_samples[len(before.sparse_samples) :]),
        devices=tuple(_grown_device(sent.get(device.device), device) for device in now.devices),
    )


def _grown_device(before: DeviceUse | None, now: DeviceUse) -> DeviceUse:
    if before is None:
        return now
    return replace(
        now,
        unused_samples=_after(before.unused_samples[-1:], now.unused_samples),
        allocated_samples=_after(before.allocated_samples[-1:], now.allocated_samples),
    )


def _after(latest: Samples, samples: Samples) -> Samples:
    """Samples of steps after the latest step that was sent."""
    return tuple(s for s in samples if not latest or s[0] > latest[0][0])


def _main_thread(stacks: ProcessStacks | None) -> ProcessStacks | None:
    """Only the main thread with its last 64 frames: judges use no other thread."""
    if stacks is None or stacks.main is None:
        return stacks
    main = replace(stacks.main, frames=stacks.main.frames[-_MOST_FRAMES:])
    return replace(stacks, threads=(main,))


class StepChunks:
    """Joins short steps of one role into chunks. All nodes choose the same chunks independently.

    The step numbers of a chunk differ only in their last bits. The number of these bits is chosen
    so that a chunk lasts at least ``LEAST_SECONDS``. A chunk is sent as its mean step when the
    next one begins.
    """

    def __init__(self) -> None:
        self._bits = 0
        self._gathered: list[Step] = []

    def join(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Complete chunks, each as one step."""
        for step in steps:
            if self._gathered and not self._belongs(step):
                yield self._take_chunk()
            if not self._gathered:
                self._bits = _bits(step)
            self._gathered.append(step)
            if not self._bits:
                yield self._take_chunk()

    def _belongs(self, step: Step) -> bool:
        first = self._gathered[0]
        is_same = first.step >> self._bits == step.step >> self._bits
        return is_same and first.ranks.keys() == step.ranks.keys()

    def _take_chunk(self) -> Step:
        gathered, self._gathered = self._gathered, []
        return mean_step(gathered) if len(gathered) > 1 else gathered[0]


def _bits(step: Step) -> int:
    """Smallest number of bits so that 2 ** bits steps like this one last long enough."""
    seconds = min(rank_step.wall_seconds for rank_step in step.ranks.values())
    return next(
        (bits for bits in range(_MOST_BITS) if seconds * 2**bits >= LEAST_SECONDS), _MOST_BITS
    )
