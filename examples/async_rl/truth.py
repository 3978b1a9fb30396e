"""Logs what the faults did and what the job itself measured, to check verdicts against.

Each process writes its own lines while it runs; the parent process merges them. The agent reads
none of these files.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from dfx_agent.commands.demo.faults import Fault
from examples.async_rl.faults import component

# a measurement of the learner: how long a step waited for samples
WAIT_FOR_SAMPLES = "collector_wait_seconds"


class TruthLog:
    """Appends the lines of one process to a file; writes nothing if ``folder`` is None."""

    def __init__(self, folder: Path | None, process: str) -> None:
        self._process = process
        self._path = folder / f"{process.replace(' ', '-')}.jsonl" if folder else None

    def injected(self, fault: Fault, step: int, amount: float, num_events: int = 1) -> None:
        """Log the ``amount`` that ``fault`` caused in ``step``; its unit is in ``_UNITS``."""
        self._write(
            {"fault": fault.kind, "where": component(fault), "step": step}
            | {"amount": amount, "events": num_events}
        )

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        """Log measurements of this process in ``step``; the names include the units."""
        self._write({"process": self._process, "step": step, "values": dict(values)})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


# Fault -> unit of its amount; amounts of other faults are in seconds.
_UNITS = {"leak": "mebibytes", "stale_samples": "groups", "stuck_server": "requests held"}


@dataclass
class _Injected:
    amounts: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    events: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def merged(faults: Sequence[Fault], lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The truth about a run: ``faults`` with their amounts, and ``measured`` by process and step.

    ``per_step`` is the mean over the steps from the first with the fault to the last but one (the
    last may be incomplete); None if the fault never happened.
    """
    injected: dict[tuple[str, str], _Injected] = defaultdict(_Injected)
    measured: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        step = int(line["step"])
        if "fault" in line:
            of_fault = injected[line["fault"], line["where"]]
            of_fault.amounts[step] += line["amount"]
            of_fault.events[step] += line["events"]
        else:
            measured[line["process"]][step].update(line["values"])
    return {
        "faults": [_described(f, injected[f.kind, component(f)], measured) for f in faults],
        "measured": {process: dict(steps) for process, steps in measured.items()},
    }


def _described(
    fault: Fault, injected: _Injected, measured: Mapping[str, Mapping[int, Mapping[str, float]]]
) -> dict[str, Any]:
    amounts = dict(sorted(injected.amounts.items()))
    if fault.kind == "starved_learner":
        amounts = _added_wait(fault, measured)
    whole = [step for step in amounts if step < max(amounts)] or list(amounts)
    return {
        "kind": fault.kind,
        "component": component(fault),
        "start_step": fault.step,
        "unit": _UNITS.get(fault.kind, "seconds"),
        "per_step": sum(amounts[step] for step in whole) / (max(whole) - min(whole) + 1)
        if whole
        else None,
        "amount_by_step": amounts,
        "events_by_step": dict(sorted(injected.events.items())),
    }


def _added_wait(
    fault: Fault, measured: Mapping[str, Mapping[int, Mapping[str, float]]]
) -> dict[int, float]:
    """Step -> seconds that the learners waited for samples longer than before the fault."""
    waits: dict[int, list[float]] = defaultdict(list)
    for process, steps in measured.items():
        if process.startswith("trainer"):
            for step, values in steps.items():
                waits[step].append(values.get(WAIT_FOR_SAMPLES, 0.0))
    # the first two steps wait until the servers have started
    before = [fmean(seconds) for step, seconds in waits.items() if 2 < step < fault.step]
    usual = median(before) if before else 0.0
    return {
        step: max(0.0, fmean(seconds) - usual)
        for step, seconds in sorted(waits.items())
        if step > fault.step  # that step still trains on samples from before the fault
    }


def read(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of all processes; a line that is still being written is left out."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jsonl"))]
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def write(path: Path, faults: Sequence[Fault], folder: Path) -> None:
    """Merge what all processes wrote into ``folder``; replaces the file atomically."""
    unfinished = path.with_name(path.name + ".unfinished")
    text = json.dumps(merged(faults, read(folder)), indent=1)
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(path)
