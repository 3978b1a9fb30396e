"""A document of facts beyond a bound is refused in one line, before it costs much."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace

import pytest

from dfx_agent.facts.bounds import MAX_BYTES, MAX_PROCESSES, MAX_ROLES, MAX_VALUES
from dfx_agent.facts.document import dumped, loaded
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.facts.seat import Launch, ProcessId, Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.snapshot import EngineFacts, EventLoopRow, LagStats, LoopHolder

FACTS = RunFacts(run="r", node="node-a", now_seconds=1.0)
LONG = "x" * 1025


ENGINE = EngineFacts("0", "", "http://h:8000", "up", 100.0)


def seats(num, role="trainer"):
    return tuple(Seat(role=role.format(n), label=str(n), created_ns=n) for n in range(num))


def refusal(document):
    with pytest.raises(ValueError) as refused:
        loaded(document)
    return str(refused.value)


def totals(num: int) -> RankTotals:
    counters = {f"counter-{i}": 1.0 for i in range(num)}
    return RankTotals(process=ProcessId("trainer", "0", 1), counters_total=counters)


def with_loop(name: str, num: int) -> RankTotals:
    lags, holder = LagStats(1, 0.1, 0.1, 0.1, 0.1, 0.1), LoopHolder(name, 0.1, 1, 0.1)
    return replace(totals(0), event_loop=EventLoopRow(60.0, lags, None, 0.1, (holder,) * num))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b" " * (MAX_BYTES + 1), "facts of more than 32 MiB"),
        (b"[[]," + b"[]," * MAX_VALUES, "facts of more than 4,000,000 values"),
    ],
    ids=["bytes", "values"],
)
def test_a_large_document_is_refused_before_it_is_parsed(document, reason):
    tracemalloc.start()
    begin = time.thread_time()
    assert refusal(document) == reason
    seconds, (_, peak_bytes) = time.thread_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 0.5
    assert peak_bytes < 1e6


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"seats": seats(MAX_PROCESSES + 1)}, "facts of more than 4,096 processes"),
        ({"seats": seats(MAX_ROLES + 1, "role-{}")}, "facts of more than 64 roles"),
        ({"totals": (totals(257),)}, "facts of a rank with more than 256 counters or stages"),
        ({"totals": (with_loop("code", 257),)}, "facts of a rank with more than 256 counters or"),
        ({"totals": (with_loop(LONG, 1),)}, "facts with a name of more than 1,024 characters"),
        ({"engines": (ENGINE,) * 1025}, "facts of more than 1,024 engines"),
        (
            {"engines": (replace(ENGINE, gauges={str(i): 1.0 for i in range(1025)}),)},
            "facts of an engine with more than 1,024 values",
        ),
        ({"run": LONG}, "facts with a name of more than 1,024 characters"),
        ({"node": LONG}, "facts with a name of more than 1,024 characters"),
        ({"launch": Launch(run=LONG, num_nodes=2)}, "facts with a name of more than 1,024 char"),
        ({"launch": Launch(run="r", num_nodes=10**30)}, "facts with a number of more than 64 bits"),
        ({"number": 1 << 63}, "facts with a number of more than 64 bits"),
        ({"seats": (Seat(role="a", label=LONG),)}, "facts with a name of more than 1,024 char"),
        (
            {"seats": (Seat(role="a", label="0", world_size=10**400),)},
            "facts with a number of more than 64 bits",
        ),
        (
            {"steps": (RoleSteps("a", (), None, 1, 10**30),)},
            "facts with a number of more than 64 bits",
        ),
        (
            {
                "scalars": (
                    ReportedScalars(
                        ProcessId("a", "0", 1), "verl", (ScalarRecord(LONG, 1.0, 1, 1),), 0
                    ),
                )
            },
            "facts with a name of more than 1,024 characters",
        ),
    ],
)
def test_what_is_beyond_a_bound_is_named(more, reason):
    assert refusal(dumped(replace(FACTS, **more))).startswith(reason)


def test_what_is_within_its_bounds_is_read():
    facts = replace(FACTS, seats=seats(MAX_PROCESSES), run="x" * 1024, number=(1 << 63) - 1)
    assert loaded(dumped(facts)) == facts
