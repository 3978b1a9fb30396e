"""Nanoseconds of short statements, interleaved so that noise falls on all of them alike."""

from __future__ import annotations

import random
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.estimates import median, quantile


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Case:
    """A statement to time; ``before`` and ``after`` run around each block, not timed."""

    name: str
    statement: str
    before: Callable[[], None] = _nothing
    after: Callable[[], None] = _nothing


EMPTY_CALL = Case("empty function call", "nothing()")
NAMES: Mapping[str, Any] = {"nothing": _nothing}


def block_means_ns(
    cases: list[Case], names: Mapping[str, Any], num_blocks: int, num_calls: int
) -> dict[str, list[float]]:
    """Mean ns per call of each block, loop included; garbage collection runs as it does in a job.

    The order of the cases is drawn anew in every round; the first round is warm-up.
    """
    namespace = {**NAMES, **names}
    timers = {
        case: timeit.Timer(case.statement, "import gc; gc.enable()", globals=namespace)
        for case in cases
    }
    means: dict[str, list[float]] = {case.name: [] for case in cases}
    for block in range(num_blocks + 1):
        for case in random.sample(cases, len(cases)):
            case.before()
            seconds = timers[case].timeit(num_calls)
            case.after()
            if block:
                means[case.name].append(seconds / num_calls * 1e9)
    return means


@dataclass(frozen=True)
class SingleCalls:
    """Calls timed one by one; ``clock_ns`` is the median of timing nothing, taken off the p99s."""

    p99s_ns: dict[str, list[float]]
    clock_ns: float
    num_calls: int


def single_calls(
    cases: list[Case], names: Mapping[str, Any], num_blocks: int, num_calls: int
) -> SingleCalls:
    """The p99 of each block of ``num_calls`` single calls, interleaved as in ``block_means_ns``."""
    empty = Case("", "pass")
    functions = {case: _timed(case.statement, {**NAMES, **names}) for case in [*cases, empty]}
    p99s: dict[str, list[float]] = {case.name: [] for case in cases}
    clocks: list[float] = []
    for block in range(num_blocks + 1):
        for case in random.sample(list(functions), len(functions)):
            case.before()
            elapsed = functions[case](num_calls)
            case.after()
            if block and case is empty:
                clocks.append(median(elapsed))
            elif block:
                p99s[case.name].append(quantile(elapsed, 0.99))
    clock_ns = median(clocks)
    less_clock = {name: [p99 - clock_ns for p99 in blocks] for name, blocks in p99s.items()}
    return SingleCalls(less_clock, clock_ns, num_blocks * num_calls)


def _timed(statement: str, names: dict[str, Any]) -> Callable[[int], list[int]]:
    """A function that runs the statement inline n times; ns of each run, clock included."""
    source = (
        "def timed(n):\n"
        "    elapsed = [0] * n\n"
        "    for i in range(n):\n"
        "        begin = clock()\n"
        f"        {statement}\n"
        "        elapsed[i] = clock() - begin\n"
        "    return elapsed\n"
    )
    namespace = {**names, "clock": time.perf_counter_ns}
    exec(source, namespace)  # a call around the statement would be timed too
    timed: Callable[[int], list[int]] = namespace["timed"]
    return timed
