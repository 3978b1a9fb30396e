"""What a node tells a hub of one run: all once, and from then on only what is new.

What is kept for the day when all is asked for again, as after a restart of the hub, is bounded.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import isfinite
from typing import Generic, TypeVar

from dfx_agent.facts.ledger import LedgerNews
from dfx_agent.facts.memory import DeviceUse, MemoryFacts, Samples
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.scalars import ScalarRecord, ToldScalars
from dfx_agent.facts.seat import ProcessId
from dfx_agent.facts.stacks import ProcessStacks
from dfx_agent.facts.steps import Step
from dfx_agent.judge.divergence.inputs import broken_place, input_of
from dfx_agent.node.collectives.step_groups import StepGroups
from dfx_agent.node.process import ClosedStep, Process

_KEEP_STEPS, _KEEP_TOLD = 64, 256
_MOST_OPERATIONS, _MOST_FRAMES = 64, 64

_Item = TypeVar("_Item")


class Told(Generic[_Item]):
    """The newest of one kind, in their order; ``news`` are told once."""

    def __init__(self, num_kept: int) -> None:
        self._items: deque[_Item] = deque(maxlen=num_kept)
        self._num_new = 0

    def add(self, items: Iterable[_Item]) -> None:
        before = len(self._items)
        new = list(items)
        self._items += new
        self._num_new = min(self._num_new + len(new), len(self._items), before + len(new))

    def news(self, *, is_full: bool) -> tuple[_Item, ...]:
        """What came since; all that is kept where ``is_full``."""
        num_known = 0 if is_full else len(self._items) - self._num_new
        self._num_new = 0
        return tuple(islice(self._items, num_known, None))


class Teller:
    """One run. ``add_*`` while it is read; the others take what a hub is to know, and forget it."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, Told[Step]] = defaultdict(partial(Told, _KEEP_STEPS))
        self._scalars: Told[ToldScalars] = Told(_KEEP_TOLD)
        self._batches: Told[LedgerNews] = Told(_KEEP_TOLD)
        self._ranks: dict[tuple[str, str, int], RankFacts] = {}
        self._memory: dict[ProcessId, MemoryFacts] = {}
        self._groups: dict[Process, StepGroups] = {}

    def add_steps(self, role: str, steps: Iterable[Step]) -> None:
        self._steps[role].add(steps)

    def add_scalars(self, told: ToldScalars) -> None:
        """Those that a judge asks for."""
        judged = tuple(scalar for scalar in told.scalars if _is_judged(told.framework, scalar))
        if judged:
            self._scalars.add([replace(told, scalars=judged)])

    def add_reading(
        self, process: Process, closed: Iterable[ClosedStep], crossed: LedgerNews | None
    ) -> None:
        """What one reading of a process brought."""
        self._groups.setdefault(process, StepGroups()).add(process, closed)
        if crossed is not None:
            self._batches.add([crossed])

    def let_go(self, process: Process) -> None:
        """It ended long ago."""
        self._groups.pop(process, None)

    def steps(self, role: str, *, is_full: bool) -> tuple[Step, ...]:
        return self._steps[role].news(is_full=is_full)

    def scalars(self, *, is_full: bool) -> tuple[ToldScalars, ...]:
        return self._scalars.news(is_full=is_full)

    def batches(self, *, is_full: bool) -> tuple[LedgerNews, ...]:
        return self._batches.news(is_full=is_full)

    def ranks(
        self, role: str, ranks: Iterable[RankFacts], *, is_full: bool
    ) -> tuple[RankFacts, ...]:
        """As they are now, with what was learned since they were told last."""
        told = []
        for rank in ranks:
            whole = replace(rank, stacks=_main_thread(rank.stacks))
            key = role, rank.label, rank.begin_ns
            before = None if is_full else self._ranks.get(key)
            self._ranks[key] = whole
            told.append(whole if before is None else _since(before, whole))
        present = {(role, rank.label, rank.begin_ns) for rank in told}
        self._ranks = {k: r for k, r in self._ranks.items() if k[0] != role or k in present}
        return tuple(told)

    def memory(self, facts: Iterable[MemoryFacts], *, is_full: bool) -> tuple[MemoryFacts, ...]:
        """Of the living processes, with the samples that are new."""
        known = list(facts)
        before = {} if is_full else self._memory
        self._memory = {each.process: each for each in known}
        return tuple(_grown(before.get(each.process), each) for each in known)


def newer(before: Sequence[_Item], now: Sequence[_Item]) -> tuple[_Item, ...]:
    """What was added at the end since ``before``, where as many may have gone from the front."""
    for num_new in range(len(now) + 1):
        kept = now[: len(now) - num_new]
        if len(kept) <= len(before) and tuple(kept) == tuple(before[len(before) - len(kept) :]):
            return tuple(now[len(kept) :])
    return tuple(now)


def _since(before: RankFacts, now: RankFacts) -> RankFacts:
    fresh = [key for key in now.operations if key not in before.operations]
    return replace(
        now,
        step_durations=newer(before.step_durations, now.step_durations),
        stage_durations=_newer_of(before.stage_durations, now.stage_durations),
        collective_durations=_newer_of(before.collective_durations, now.collective_durations),
        operations={key: now.operations[key] for key in fresh[-_MOST_OPERATIONS:]},
        stacks=None if before.stacks == now.stacks else now.stacks,
        flight=None if before.flight == now.flight else now.flight,
    )


def _newer_of(
    before: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    found = {name: newer(before.get(name, ()), known) for name, known in now.items()}
    return {name: known for name, known in found.items() if known}


def _grown(before: MemoryFacts | None, now: MemoryFacts) -> MemoryFacts:
    if before is None:
        return now
    sparse = (
        _after(known[-1:], samples)
        for known, samples in zip(before.sparse_samples, now.sparse_samples, strict=False)
    )
    known = {device.device: device for device in before.devices}
    return replace(
        now,
        samples=_after(before.samples[-1:], now.samples),
        sparse_samples=(*sparse, *now.sparse_samples[len(before.sparse_samples) :]),
        devices=tuple(_grown_device(known.get(device.device), device) for device in now.devices),
    )


def _grown_device(before: DeviceUse | None, now: DeviceUse) -> DeviceUse:
    if before is None:
        return now
    return replace(now, unused_samples=_after(before.unused_samples[-1:], now.unused_samples))


def _after(newest: Samples, samples: Samples) -> Samples:
    """Those of later steps than the newest that was told."""
    return tuple(s for s in samples if not newest or s[0] > newest[0][0])


def _main_thread(stacks: ProcessStacks | None) -> ProcessStacks | None:
    """Where it stands: nothing else of a process is judged."""
    if stacks is None or stacks.main is None:
        return stacks
    main = replace(stacks.main, frames=stacks.main.frames[-_MOST_FRAMES:])
    return replace(stacks, threads=(main,))


def _is_judged(framework: str, scalar: ScalarRecord) -> bool:
    if input_of(framework, scalar.key) is not None:
        return True
    return not isfinite(scalar.value) and broken_place(framework, scalar.key) is not None
