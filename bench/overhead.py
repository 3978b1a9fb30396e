"""What the guest costs a training: its own time per step, and step time with it and without it.

The first is the events of a real demo run times their cost measured here. The second is the demo's
trainer with the guest turned on and off in random order, a real agent reading meanwhile; ``off``
against ``off`` again (A/A) says how far apart equal things are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch  # noqa: F401
from opentelemetry.sdk.trace import TracerProvider

import dfx_agent.shim as dfx
from bench.calls import Case, block_means_ns
from bench.estimates import bootstrap_interval, geometric_mean, median
from bench.measurement import Bar, Baseline, Result, report
from bench.served_agent import serving
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import (
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

NUM_RANKS = 2
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
WARM_UP_STEPS = 2
EVENT_CASES = {
    STAGE: Case("stage", "with stage('rollout'): pass"),
    WAIT: Case("wait", "with wait('barrier'): pass"),
    SCALAR: Case("scalar", "scalars({'actor/ppo_kl': 0.5}, step=7)"),
    TOKENS: Case("tokens", "tokens('response', 64)"),
    QUEUE: Case("queue", "queue('pending', 3)"),
    POLICY_VERSION: Case("policy_version", "policy_version(7)"),
    STEP: Case("set_step", "set_step(7)"),
}
TELEMETRY = Case("OpenTelemetry span", "with start('rollout'): pass")

Rounds = list[dict[str, dict[str, float]]]  # arm -> {"wall_seconds", "cpu_seconds"}, of one rank


def measure(*, quick: bool) -> list[Result]:
    costs_ns = _costs_ns(quick=quick)
    return [_own_cost(costs_ns, 5 if quick else 24), *_on_off(6.0 if quick else 180.0)]


def _costs_ns(*, quick: bool) -> dict[str, float]:
    """Median ns of each event, by the name of its case."""
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        dfx.init(run="bench", directory=folder)
        names = {name: getattr(dfx, name) for name in dfx.__all__}
        names["start"] = TracerProvider().get_tracer("bench").start_as_current_span
        cases = [*EVENT_CASES.values(), TELEMETRY]
        means = block_means_ns(cases, names, num_blocks=10 if quick else 100, num_calls=500)
        dfx.shutdown()
    return {name: median(blocks) for name, blocks in means.items()}


def _own_cost(costs_ns: dict[str, float], num_steps: int) -> Result:
    """Of the rank with the most events, in percent of its step."""
    steps = max(_demo_steps(num_steps), key=lambda steps: median([_num_events(s) for s in steps]))
    ours, telemetry = [], []
    for step_ns, events in steps:
        spent = sum(count * costs_ns[EVENT_CASES[kind].name] for kind, count in events.items())
        ours.append(100 * spent / step_ns)
        telemetry.append(100 * _num_events((step_ns, events)) * costs_ns[TELEMETRY.name] / step_ns)
    low, high = bootstrap_interval(median, ours)
    step_ms = median([step_ns for step_ns, _ in steps]) / 1e6
    num_events = median([_num_events(step) for step in steps])
    return Result(
        name="guest's own cost",
        value=median(ours),
        unit="% of step time",
        n=len(ours),
        spread={"low": low, "high": high},
        baseline=Baseline("as many OpenTelemetry spans", median(telemetry)),
        bar=Bar(0.1),
        note=f"{num_events:.0f} events in steps of {step_ms:.0f} ms, {NUM_RANKS} ranks DDP",
    )


Step = tuple[int, Counter[int]]  # nanoseconds, events by kind


def _demo_steps(num_steps: int) -> list[list[Step]]:
    """The steps of each rank of a real demo run, from its segments."""
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        _train(["dfx_agent.demo.tiny_grpo", "--steps", str(num_steps)], folder)
        ranks = [list(_steps_in(path)) for path in Path(folder).glob("*.seg")]
    ranks = [steps for steps in ranks if steps]
    if len(ranks) != NUM_RANKS:
        raise RuntimeError(f"the demo left {len(ranks)} segments, not {NUM_RANKS}")
    return ranks


def _steps_in(path: Path) -> Iterator[Step]:
    """All steps but the first ones and the last one, which has no end."""
    reader = SegmentReader(str(path))
    records: list[Record] = []
    while batch := reader.poll():
        records.extend(batch)
    if reader.ring.num_lost:
        raise RuntimeError(f"{path} was overwritten: train fewer steps")
    reader.close()
    begins = [number for number, record in enumerate(records) if _kind(record) == STEP]
    for begin, end in list(pairwise(begins))[WARM_UP_STEPS:]:
        step_ns = records[end][1] - records[begin][1]
        yield step_ns, Counter(map(_kind, records[begin:end]))


def _kind(record: Record) -> int:
    return record[8] & KIND_MASK


def _num_events(step: Step) -> int:
    return sum(step[1].values())


def _on_off(seconds: float) -> list[Result]:
    with serving() as agent, tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        out = Path(folder, "rounds.json")
        command = ["bench.toggled_training", "--seconds", str(seconds), "--out", str(out)]
        _train(command, agent.directory)
        ranks: list[Rounds] = json.loads(out.read_text())
    return [row for clock in ("wall_seconds", "cpu_seconds") for row in _ratios(ranks, clock)]


def _ratios(ranks: list[Rounds], clock: str) -> list[Result]:
    """on / off and A/A of one clock, each the geometric mean over rounds."""
    rounds = [
        {arm: sum(rank[arm][clock] for rank in ranks_in_round) for arm in ranks_in_round[0]}
        for ranks_in_round in zip(*ranks, strict=True)
    ]
    on_off = [r["on"] / geometric_mean([r["off"], r["again"]]) for r in rounds]
    same = [r["again"] / r["off"] for r in rounds]
    interval, same_interval = (bootstrap_interval(geometric_mean, each) for each in (on_off, same))
    step_ms = median([r["off"] for r in rounds]) * 1e3 / len(ranks)
    word = clock.removesuffix("_seconds")
    # equal arms give 1 by symmetry; overlap with the A/A interval would excuse too much
    verdict = "not distinguishable" if interval[0] <= 1 <= interval[1] else "distinguishable"
    baseline = Baseline("off / off again (A/A)", geometric_mean(same))
    note = f"95 % interval, {verdict} from A/A; steps of {step_ms:.0f} ms {word} per rank"
    return [
        _ratio(f"step {word} time, on / off", on_off, interval, note, baseline, interval[1]),
        _ratio(f"step {word} time, off / off again (A/A)", same, same_interval, "95 % interval"),
    ]


def _ratio(
    name: str,
    rounds: list[float],
    interval: tuple[float, float],
    note: str,
    baseline: Baseline | None = None,
    bound: float | None = None,
) -> Result:
    bar = None if bound is None else Bar(1.01, bound=bound)
    spread = {"low": interval[0], "high": interval[1]}
    return Result(name, geometric_mean(rounds), "x", len(rounds), spread, baseline, bar, note)


def _train(module_and_arguments: list[str], segments: str) -> None:
    """torchrun on this machine; RuntimeError with its last lines when it fails."""
    command = [*TORCHRUN, str(NUM_RANKS), "-m", *module_and_arguments]
    env = {**os.environ, "DFX_DIR": segments, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    report(measure)
