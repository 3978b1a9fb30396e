"""What one record costs the training thread, beside a counter of prometheus_client.

torch is loaded, as it is in a training process: the guest then asks torch whether it is compiling.
"""

from __future__ import annotations

import tempfile
import time

import torch  # noqa: F401
from prometheus_client import CollectorRegistry, Counter

import dfx_agent.shim as dfx
from bench.calls import EMPTY_CALL, Case, block_means_ns, single_calls
from bench.measurement import Bar, Baseline, Result, median_of, of_samples, report
from dfx_agent.shim import recorder
from dfx_agent.wire.records import SCALAR

SCALAR_CASE = Case("dfx.scalar", "scalar('actor/ppo_kl', 0.5)")
EMIT = Case("emit", "emit(now, now, 0.5, 7, 0, 0, 0, kind, 1)")
COUNTS = Case("dfx.tokens", "tokens('response', 64)")
CHILD = Case("prometheus_client child.inc()", "child.inc()")
LABELS = Case("prometheus_client labels().inc()", "counter.labels('0').inc()")
CASES = [SCALAR_CASE, EMIT, COUNTS, CHILD, LABELS, EMPTY_CALL]


def measure(*, quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        dfx.init(run="bench", directory=folder)
        dfx.set_step(7)
        names = _names()
        means = block_means_ns(CASES, names, num_blocks=5 if quick else 400, num_calls=1000)
        singles = single_calls(CASES, names, num_blocks=2 if quick else 60, num_calls=5000)
        dfx.shutdown()
    return [*_p50s(means), *_p99s(singles.p99s_ns, singles.clock_ns)]


def _names() -> dict[str, object]:
    assert recorder.current is not None
    counter = Counter("bench", "bench", ["rank"], registry=CollectorRegistry())
    return {
        "scalar": dfx.scalar,
        "tokens": dfx.tokens,
        "emit": recorder.current.emit,
        "now": time.monotonic_ns(),
        "kind": SCALAR,
        "counter": counter,
        "child": counter.labels("0"),
    }


def _p50s(means: dict[str, list[float]]) -> list[Result]:
    microseconds = {name: [ns / 1e3 for ns in blocks] for name, blocks in means.items()}
    child = median_of(CHILD.name, microseconds[CHILD.name])
    empty = median_of(EMPTY_CALL.name, microseconds[EMPTY_CALL.name])
    bars = {SCALAR_CASE: Bar(1.0), EMIT: Bar(1.0), COUNTS: Bar(1.0)}
    return [
        of_samples(
            f"{case.name}, p50",
            microseconds[case.name],
            "us",
            baseline=child if case in bars else empty,
            bar=bars.get(case),
            note="blocks of 1,000 calls",
        )
        for case in CASES
        if case is not EMPTY_CALL
    ]


def _p99s(p99s_ns: dict[str, list[float]], clock_ns: float) -> list[Result]:
    microseconds = {name: [ns / 1e3 for ns in blocks] for name, blocks in p99s_ns.items()}
    child = median_of(CHILD.name, microseconds[CHILD.name])
    note = f"median over blocks of 5,000 single calls; clock's own {clock_ns:.0f} ns taken off"
    bars: dict[Case, Bar | None] = {SCALAR_CASE: Bar(10.0), EMIT: Bar(10.0), COUNTS: Bar(10.0)}
    rows = []
    for case in (SCALAR_CASE, EMIT, COUNTS, LABELS):
        baseline: Baseline | None = child
        bar, samples = bars.get(case), microseconds[case.name]
        rows.append(
            of_samples(f"{case.name}, p99", samples, "us", baseline=baseline, bar=bar, note=note)
        )
    return rows


if __name__ == "__main__":
    report(measure)
