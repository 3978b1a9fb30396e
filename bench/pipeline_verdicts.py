"""What is concluded of the asynchronous demo, against its own record of what its faults did.

    python -m bench.pipeline_verdicts --out verdicts.json
    python -m bench.pipeline_verdicts --fault healthy --seconds 1800
    python -m bench.pipeline_verdicts --fault slow_tool:0.6,blocked_loop:0.8

For each fault the demo runs with ``--truth``, and its agent is asked once a second. Told are: the
seconds and steps from the fault's first step to the first answer that names the component; in how
many windows from the fifth step on it is named; amount / truth of the steps that such a window
stands for; by how much a step became longer, as predicted by the verdict and as measured; and each
other component that was named, with its sentence.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.pipeline_counterfactual import Counterfactual, counterfactual
from dfx_agent.judge.bottleneck.window import NUM_COMPARED

HERE = Path(__file__).resolve().parent
HEALTHY = "healthy"
# fault -> the component that has to be named
COMPONENTS = {
    "slow_replica:1:3": "rollout replica 1",
    "slow_tool:0.6": "tool",
    "stuck_server:0": "rollout replica 0",
    "slow_barrier:1:0.6": "trainer rank 1",
    "blocked_loop:0.8": "orchestrator event loop",
    "blocked_loop:1.5:10": "orchestrator event loop",
    "stale_samples": "sample queue",
    "starved_learner": "rollout concurrency",
    "slow_weight_sync:1.0": "weight transfer to rollout replica 1",
    "leak:20": "memory of orchestrator",
    "leak:150": "memory of orchestrator",
    HEALTHY: "",
}
_ASK_SECONDS, _ANSWER_SECONDS, _END_SECONDS = 1.0, 10.0, 30.0
_LEARNER = "trainer"
_SETTLED_STEPS = 4
_MIB_A_STEP = re.compile(r"([0-9.]+) MiB more a step")


@dataclass(frozen=True)
class Named:
    """A component in one answer; ``steps`` is what its amount stands for."""

    seconds: float
    step: int
    component: str
    sentence: str
    amount: float | None
    unit: str
    steps: tuple[int, int] | None


@dataclass
class Result:
    """Of one run of the demo."""

    fault: str
    component: str
    num_steps: int = 0
    num_windows: int = 0  # from the fifth step of the fault on
    num_named: int = 0
    first_step: int | None = None
    named_after_steps: int | None = None
    named_after_seconds: float | None = None
    ratios: list[float] = field(default_factory=list)
    step_seconds: dict[int, float] = field(default_factory=dict)
    step_change: Counterfactual | None = None
    others: dict[str, str] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)  # by other verdicts


def main() -> None:
    options = _parse()
    results = []
    for fault in options.fault.split(","):
        seconds = options.seconds
        with tempfile.TemporaryDirectory(prefix="pipeline_verdicts_") as folder:
            result = _result(fault, seconds, Path(folder))
        results.append(result)
        print(_line(result), flush=True)
        for component, sentence in result.others.items():
            print(f"    also named: {component}: {sentence}", flush=True)
        for verdict, summary in result.found.items():
            print(f"    also found: {verdict}: {summary}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(list(map(asdict, results)), indent=1) + "\n")


def _result(fault: str, seconds: float, folder: Path) -> Result:
    """Run the demo for so long, and compare."""
    result = Result(fault, COMPONENTS[fault])
    truth_file = folder / "truth.json"
    named: list[Named] = []
    windows: dict[int, set[str]] = {}
    begins: dict[int, float] = {}
    with _demo(fault, truth_file, folder) as url, httpx.Client(timeout=_ANSWER_SECONDS) as client:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(_ASK_SECONDS)
            try:
                snapshot = client.get(f"{url}/api/v1/snapshot").raise_for_status().json()
            except httpx.HTTPError:
                continue
            for run in snapshot["runs"]:
                step = _closed_step(run)
                begins.setdefault(step, time.monotonic())
                reported = list(_named(run, step, time.monotonic()))
                windows.setdefault(step, set()).update(item.component for item in reported)
                named += reported
                _note_steps(result, run)
                _note_found(result, run)
    _compare(result, json.loads(truth_file.read_text()), named, windows, begins)
    return result


def _note_steps(result: Result, run: Mapping[str, Any]) -> None:
    for row in run["steps"]:
        if row["role"] == _LEARNER:
            result.step_seconds[row["step"]] = row["end_seconds"] - row["begin_seconds"]


def _closed_step(run: Mapping[str, Any]) -> int:
    return max((row["step"] for row in run["steps"] if row["role"] == _LEARNER), default=0)


def _named(run: Mapping[str, Any], step: int, now: float) -> Iterator[Named]:
    verdict = run["bottleneck"] or {"causes": ()}
    for cause in verdict["causes"]:
        steps = None
        if verdict["first_step"] is not None:
            first, last = verdict["first_step"], verdict["last_step"]
            if cause["since_step"]:  # told against what was usual before
                first = max(cause["since_step"], last - NUM_COMPARED + 1)
            steps = first, last
        yield Named(
            now, step, cause["component"], cause["sentence"], cause["amount"], cause["unit"], steps
        )
    for reported in run["verdicts"]:
        growth = _MIB_A_STEP.search(reported["summary"])
        if (reported["kind"], reported["state"]) == ("memory", "found") and growth:
            component, summary = f"memory of {reported['role']}", reported["summary"]
            yield Named(now, step, component, summary, float(growth[1]), "MiB", (step, step))


def _note_found(result: Result, run: Mapping[str, Any]) -> None:
    for reported in run["verdicts"]:
        if reported["state"] == "found":
            result.found[f"{reported['kind']} ({reported['role']})"] = reported["summary"]


def _compare(
    result: Result,
    truth: Mapping[str, Any],
    named: Sequence[Named],
    windows: Mapping[int, set[str]],
    begins: Mapping[int, float],
) -> None:
    result.num_steps = max(windows, default=0)
    result.others = {n.component: n.sentence for n in named if n.component != result.component}
    if not truth["faults"]:
        return
    (fault,) = truth["faults"]
    amounts = {int(step): amount for step, amount in fault["amount_by_step"].items() if amount}
    events = {int(step): number for step, number in fault["events_by_step"].items()}
    if not amounts:
        return
    result.first_step = first = min(amounts)
    own = [item for item in named if item.component == result.component]
    if own:
        result.named_after_steps = own[0].step - first + 1
        began = [at for step, at in begins.items() if step >= first - 1]
        result.named_after_seconds = round(own[0].seconds - min(began), 1)
    settled = [components for step, components in windows.items() if step > first + _SETTLED_STEPS]
    result.num_windows = len(settled)
    result.num_named = sum(result.component in components for components in settled)
    of_step = [n.amount for n in own if n.unit == "seconds" and n.amount and n.step >= first + 3]
    result.step_change = counterfactual(result.step_seconds, first, of_step)
    for item in {(n.steps, n.amount): n for n in own}.values():
        ratio = _ratio(item, amounts, events)
        if ratio is not None:
            result.ratios.append(ratio)


def _ratio(named: Named, amounts: Mapping[int, float], events: Mapping[int, int]) -> float | None:
    """None for a window that began before the fault, or has no amount."""
    if named.amount is None:
        return None
    if named.steps is None:  # it stands: what it holds is told at once
        return named.amount / next(iter(amounts.values()))
    first, last = named.steps
    steps = [step for step in amounts if first <= step <= last]
    if first < min(amounts) or not steps:
        return None
    total = sum(amounts[step] for step in steps)
    if named.unit.endswith("a call"):
        return named.amount / (total / sum(events.get(step, 0) for step in steps))
    return named.amount / (total / (last - first + 1))


def _line(result: Result) -> str:
    text = f"{result.fault}: {result.num_steps} steps"
    if result.first_step is None:
        return f"{text}; {len(result.others)} components named"
    named = "never named"
    if result.named_after_seconds is not None:
        named = (
            f"named after {result.named_after_steps} steps, {result.named_after_seconds:.0f} s; "
            f"then in {result.num_named} of {result.num_windows} windows"
        )
    ordered = sorted(result.ratios)
    quarters = (
        [ordered[int(len(ordered) * share)] for share in (0.25, 0.5, 0.75)] if ordered else ()
    )
    reported = ", ".join(f"{ratio:.2f}" for ratio in quarters) or "none"
    text += f"; {named}; amount / truth {reported} (quartiles of {len(ordered)})"
    change = result.step_change
    if change is None:
        return text
    return (
        f"{text}; a step is longer by {change.predicted_seconds:.2f} s as predicted, "
        f"{change.measured_seconds:.2f} ± {change.uncertainty_seconds:.2f} s as measured"
    )


@contextmanager
def _demo(fault: str, truth: Path, folder: Path) -> Iterator[str]:
    """The demo with its agent; its address. It is ended in order, so that ``truth`` is whole."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "dfx_agent", "run", "--listen", address]
    command += ["--dir", str(folder / "segments"), "--", sys.executable, "-m", "examples.async_rl"]
    command += ["--steps", "1000000", "--truth", str(truth)]
    command += [] if fault == HEALTHY else ["--fault", fault]
    with (folder / "demo.log").open("wb") as log:
        demo = subprocess.Popen(command, stdout=log, stderr=log, cwd=HERE.parent)
    try:
        yield f"http://{address}"
    finally:
        demo.terminate()
        try:
            demo.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            demo.kill()
            demo.wait()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pipeline_verdicts", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--fault", default=",".join(COMPONENTS), metavar="SPEC,...")
    parser.add_argument("--seconds", type=float, default=100.0, help="of each; default %(default)s")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    unknown = set(options.fault.split(",")) - COMPONENTS.keys()
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}; there are {', '.join(COMPONENTS)}")
    return options


if __name__ == "__main__":
    main()
