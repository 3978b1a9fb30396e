"""The guest's cost of a job, accounted: what it recorded per step times what each of it takes.

``EventCosts`` holds ns measured in loops of equal calls, so they are the least that an event takes;
what a hook takes in a real job is measured by bench/timed_in_place.py.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch  # noqa: F401 (the guest then asks it whether it is compiling)
from opentelemetry.sdk.trace import TracerProvider

import dfx_agent.shim as dfx
from bench.calls import Case, block_means_ns
from bench.estimates import bootstrap_interval, median
from bench.hooked_calls import (
    ALL_REDUCE,
    ASYNC,
    BACKWARD,
    BARRIER,
    DDP_GRADIENTS,
    FORWARD,
    GRAD_NORM,
    OPTIMIZER,
    Added,
    added_by_hooks,
)
from bench.measurement import Bar, Baseline, Result
from dfx_agent.shim import recorder
from dfx_agent.shim.torch.hooks import torch_hooks
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    COUNT,
    KIND_MASK,
    POLICY_VERSION,
    QUEUE,
    SCALAR,
    STAGE,
    STEP,
    TOKENS,
    WAIT,
    Record,
)

WARM_UP_STEPS = 5
MAX_PERCENT = 0.1
SPAN, COUNTER, NUMBER, NEXT_STEP = "stage", "count", "scalar", "set_step"
CALLS = (
    Case(SPAN, "with stage('rollout'): pass"),
    Case("wait", "with wait('barrier'): pass"),
    Case(NUMBER, "scalars({'actor/ppo_kl': 0.5}, step=7)"),
    Case("tokens", "tokens('response', 64)"),
    Case("queue", "queue('pending', 3)"),
    Case("policy_version", "policy_version(7)"),
    Case(COUNTER, "count('bench', 1)"),
    Case(NEXT_STEP, "set_step(7)"),
)
TELEMETRY = Case("OpenTelemetry span", "with start('rollout'): pass")
OF_KIND = {
    WAIT: "wait",
    TOKENS: "tokens",
    QUEUE: "queue",
    POLICY_VERSION: "policy_version",
    STEP: NEXT_STEP,
}
# one record of a hook stands for all that the hook does; the spans in it are records of their own
OF_COUNTER = {"micro_batches": BACKWARD, "optimizer_steps": OPTIMIZER}
HOOKS_WITH_SPAN = (BACKWARD, OPTIMIZER, FORWARD)
FORWARD_STAGE = "forward"


@dataclass(frozen=True)
class EventCosts:
    """``ns``: median by name of the event; ``added``: the hooks with what they were timed on."""

    ns: Mapping[str, float]
    added: Mapping[str, Added]
    telemetry_ns: float

    def between(self, later: EventCosts) -> EventCosts:
        """For what ran between the two: the machine's speed may have changed meanwhile."""
        ns = {name: (value + later.ns[name]) / 2 for name, value in self.ns.items()}
        return EventCosts(ns, self.added, (self.telemetry_ns + later.telemetry_ns) / 2)


@dataclass(frozen=True)
class Step:
    """One step of one rank: how long it took, and its events by name."""

    ns: int
    events: Counter[str]


def event_costs(*, quick: bool) -> EventCosts:
    """Measured here and now, in this process, which must not use torch.distributed otherwise."""
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        dfx.init(run="bench", directory=folder)
        torch_hooks._stop_watching()  # its looks for models would fall into the blocks
        start = TracerProvider().get_tracer("bench").start_as_current_span
        assert recorder.current is not None
        names = {name: getattr(dfx, name) for name in dfx.__all__}
        names |= {"start": start, "count": recorder.current.count}
        means = block_means_ns(
            [*CALLS, TELEMETRY], names, 3 if quick else 100, 50 if quick else 500
        )
        added = added_by_hooks(start, quick=quick)
        dfx.shutdown()
    ns = {name: median(blocks) for name, blocks in means.items()}
    ns |= {name: max(0.0, hook.ns) for name, hook in added.items()}
    for name in HOOKS_WITH_SPAN:
        ns[name] = max(0.0, ns[name] - ns[SPAN])
    return EventCosts(ns, added, ns.pop(TELEMETRY.name))


def accounted_ns(step: Step, costs: EventCosts) -> float:
    """Events of a step times their cost."""
    return sum(number * costs.ns[name] for name, number in step.events.items())


def own_cost(job: str, ranks: Sequence[Sequence[Step]], costs: EventCosts, what: str) -> Result:
    """Of the rank with the most events, in percent of its steps."""
    steps = max(ranks, key=lambda steps: median([s.events.total() for s in steps]))
    ours = [100 * accounted_ns(step, costs) / step.ns for step in steps]
    telemetry = [100 * step.events.total() * costs.telemetry_ns / step.ns for step in steps]
    low, high = bootstrap_interval(median, ours)
    step_ms = median([step.ns for step in steps]) / 1e6
    num_events = median([step.events.total() for step in steps])
    return Result(
        name=f"{job} guest's own cost, accounted",
        value=median(ours),
        unit="% of step time",
        n=len(ours),
        spread={"low": low, "high": high},
        baseline=Baseline("as many OpenTelemetry spans", median(telemetry)),
        bar=Bar(MAX_PERCENT),
        note=f"{num_events:.0f} events in steps of {step_ms:.0f} ms, {what}",
    )


def steps_of_ranks(folder: str, num_ranks: int) -> list[list[Step]]:
    """The steps of each rank of a job that has ended, from the segments that it left."""
    ranks = [list(_steps_in(path)) for path in Path(folder).glob("*.seg")]
    ranks = [steps for steps in ranks if steps]
    if len(ranks) != num_ranks:
        raise RuntimeError(f"the job left {len(ranks)} segments, not {num_ranks}")
    return ranks


def _steps_in(path: Path) -> Iterator[Step]:
    """All steps but the first ones and the last one, which has no end."""
    reader = SegmentReader(str(path))
    records: list[Record] = []
    while batch := reader.poll():
        records.extend(batch)
    if reader.ring.num_lost:
        raise RuntimeError(f"{path} was overwritten: train fewer steps")
    names = [reader.name(record[9]) or "" for record in records]
    reader.close()
    events = [list(events_of(*each)) for each in zip(records, names, strict=True)]
    begins = [number for number, record in enumerate(records) if record[8] & KIND_MASK == STEP]
    for begin, end in list(pairwise(begins))[WARM_UP_STEPS:]:
        counted = Counter(name for found in events[begin:end] for name in found)
        yield Step(records[end][1] - records[begin][1], counted)


def events_of(record: Record, name: str) -> Iterator[str]:
    """Names in ``EventCosts.ns``; none for what is part of another event or of the watch thread."""
    kind = record[8] & KIND_MASK
    if kind in OF_KIND:
        yield OF_KIND[kind]
    elif kind == STAGE:
        yield SPAN
        if name == FORWARD_STAGE:
            yield FORWARD
    elif kind == COUNT:
        yield OF_COUNTER.get(name, COUNTER)
    elif kind == SCALAR:
        if name.startswith("torch/"):
            yield from (GRAD_NORM,) if name.endswith("/grad_norm") else ()
        else:
            yield NUMBER
    elif kind == COLLECTIVE:
        yield _collective(name.partition("@")[0], is_blocking=bool(record[8] & BLOCKING))


def _collective(operation: str, *, is_blocking: bool) -> str:
    """An asynchronous one stands for its wait too."""
    if operation == "ddp_gradients":
        return DDP_GRADIENTS
    if operation == "barrier":
        return BARRIER
    return ALL_REDUCE if is_blocking else ASYNC
