"""Limits of a document of facts: a node sends no more, and a hub refuses more.

A process of the job can choose names and numbers freely, and a hub stores them for every run.
"""

from __future__ import annotations

from collections.abc import Iterator

from dfx_agent.facts.run import RunFacts
from dfx_agent.snapshot import EngineFacts, EventLoopRow

# enough for 100 ranks with everything that a node stores: 64 steps, reported numbers, batches. Each
# rank and step takes 6.4 KB and 730 values
MAX_BYTES, MAX_VALUES = 32 << 20, 4_000_000
MAX_PROCESSES, MAX_ROLES = 4096, 64
# of counters, stages or tokens of one rank, each
MAX_NAMES_OF_RANK = 256
# of a run on one node, and values of one kind of each
MAX_ENGINES, MAX_ENGINE_VALUES = 1024, 1024
MAX_NAME_CHARACTERS, MAX_NUMBER = 1024, 1 << 63


def check_size(document: bytes) -> None:
    """Check the size before parsing. Raises ValueError with one line."""
    if len(document) > MAX_BYTES:
        raise ValueError(f"facts of more than {MAX_BYTES >> 20} MiB")
    may_exceed = len(document) > MAX_VALUES  # a value has a byte at least
    if may_exceed and sum(map(document.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"facts of more than {MAX_VALUES:,} values")


def check(facts: RunFacts) -> None:
    """Raise ValueError with one line about the first value that exceeds its limit."""
    num_processes = len(facts.seats) + len(facts.left)
    of_roles = *facts.ranks.values(), *facts.unjudged.values()
    num_items = map(len, (*of_roles, facts.memory, facts.totals))
    if max(num_processes, *num_items) > MAX_PROCESSES:
        raise ValueError(f"facts of more than {MAX_PROCESSES:,} processes")
    roles = {seat.role for seat in facts.seats} | facts.ranks.keys() | facts.unjudged.keys()
    if len(roles | {steps.role for steps in facts.steps}) > MAX_ROLES:
        raise ValueError(f"facts of more than {MAX_ROLES} roles")
    if any(num > MAX_NAMES_OF_RANK for num in _nums_of_ranks(facts)):
        raise ValueError(f"facts of a rank with more than {MAX_NAMES_OF_RANK} counters or stages")
    _check_engines(facts.engines or ())
    if any(len(name) > MAX_NAME_CHARACTERS for name in _names(facts)):
        raise ValueError(f"facts with a name of more than {MAX_NAME_CHARACTERS:,} characters")
    if any(abs(number) >= MAX_NUMBER for number in _numbers(facts)):
        raise ValueError("facts with a number of more than 64 bits")


def _check_engines(engines: tuple[EngineFacts, ...]) -> None:
    if len(engines) > MAX_ENGINES:
        raise ValueError(f"facts of more than {MAX_ENGINES:,} engines")
    for engine in engines:
        values = engine.gauges, engine.totals, engine.rates, engine.histograms, engine.latencies
        sizes = map(len, (*values, engine.weight_load_seconds, engine.unknown_names))
        bounds = (len(histogram.counts) for histogram in engine.histograms.values())
        if max(*sizes, *bounds, 0) > MAX_ENGINE_VALUES:
            raise ValueError(f"facts of an engine with more than {MAX_ENGINE_VALUES:,} values")


def _nums_of_ranks(facts: RunFacts) -> Iterator[int]:
    for totals in facts.totals:
        split = totals.totals
        yield from map(len, (totals.counters_total, totals.tokens_total, split.stage_seconds))
        yield from map(len, (split.wait_seconds, *split.wait_seconds.values()))
        yield from map(len, (totals.devices, totals.device_names, totals.held, totals.groups))
        yield from _nums_of_loop(totals.event_loop)
        if totals.work is not None:
            yield from map(len, (totals.work.stages, totals.work.models))


def _nums_of_loop(loop: EventLoopRow | None) -> Iterator[int]:
    if loop is not None:
        phases = loop.last_step.phases if loop.last_step else ()
        yield from map(len, (loop.holders, phases, *(phase.holders for phase in phases)))


def _names(facts: RunFacts) -> Iterator[str]:
    yield from (facts.run, facts.node, facts.agent, facts.boot, facts.framework, facts.called)
    yield facts.failing
    for seat in facts.seats:
        yield from (seat.role, seat.label, seat.node, seat.rendezvous)
    for role, ranks in (*facts.ranks.items(), *facts.unjudged.items()):
        yield role
        yield from (rank.label for rank in ranks)
    for totals in facts.totals:
        yield from (*totals.counters_total, *totals.tokens_total)
        yield from totals.totals.stage_seconds
        yield from (row.group for row in totals.groups)
        loop, work = totals.event_loop, totals.work
        yield from (holder.name for holder in (loop.holders if loop else ()))
        yield from (work.device, work.reason, *(m.name for m in work.models)) if work else ()
    for scalars in facts.scalars:
        yield from (scalar.key for scalar in scalars.scalars)
    for engine in facts.engines or ():
        yield from (engine.replica, engine.dp_rank, engine.url, engine.model, engine.worker)
        yield from (engine.engine, engine.reason, *engine.unknown_names)
    if facts.launch is not None:
        yield from (facts.launch.run, facts.launch.meets_at)


def _numbers(facts: RunFacts) -> Iterator[int]:
    yield from (facts.now_ns, facts.number)
    for seat in facts.seats:
        yield from (seat.rank, seat.local_rank, seat.world_size)
        yield from (seat.pid, seat.created_ns, seat.attempt)
    for steps in facts.steps:
        yield from (steps.num_ranks, steps.world_size, *(step.step for step in steps.steps))
    if facts.launch is not None:
        yield from (facts.launch.num_nodes, facts.launch.node_rank, facts.launch.begin_ns)
