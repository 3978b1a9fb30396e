"""Run a piece of a job in a process of its own with the guest armed, and say what it recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
TIMEOUT_SECONDS = 200.0
IMPORTS_TORCH = re.compile(r"^\s*(import|from) .*\btorch\b", re.MULTILINE)


@dataclass(frozen=True)
class Record:
    """One record of the ring; ``kind`` in words, step -1 where none was known."""

    kind: str
    name: str
    value: float
    step: int
    seconds: float


@dataclass(frozen=True)
class Observed:
    """What one process left: its records in order, who it says it is, the guest's own errors."""

    records: list[Record]
    identity: dict[str, Any]
    num_errors: int
    output: str

    def names(self, kind: str) -> list[str]:
        """Names of the records of one kind, in order."""
        return [record.name for record in self.records if record.kind == kind]

    def scalars(self) -> dict[tuple[str, int], list[float]]:
        """(name, step) -> every value that was recorded for it."""
        found: dict[tuple[str, int], list[float]] = {}
        for record in self.records:
            if record.kind == "scalar":
                found.setdefault((record.name, record.step), []).append(record.value)
        return found

    def steps(self) -> list[int]:
        """Steps in the order in which they began."""
        return [record.step for record in self.records if record.kind == "step"]

    def ledger(self, boundary: str) -> dict[tuple[str, str], list[float]]:
        """(field, column) -> its values at this boundary; column "" is the whole batch."""
        found: dict[tuple[str, str], list[float]] = {}
        for record in self.records:
            if record.kind == "ledger":
                field, place, column = record.name.split("/", 2)
                if place == boundary:
                    found.setdefault((field, column), []).append(record.value)
        return found

    def gauges(self) -> dict[str, float]:
        """The newest value of each."""
        return {record.name: record.value for record in self.records if record.kind == "gauge"}

    def parts(self, adapter: str = "") -> dict[str, float]:
        """part -> 1 active, 0 absent, -1 failed; of one adapter where it is named."""
        return {
            record.name.split("/")[2]: record.value
            for record in self.records
            if record.kind == "gauge" and record.name.startswith(f"adapter/{adapter}")
        }


def need_packages(sources: str) -> None:
    """Skip the test if these sources import torch and it is not installed."""
    if IMPORTS_TORCH.search(sources):
        pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")


def observe(
    job: str,
    *,
    paths: Sequence[str | Path] = (),
    stubs: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Observed:
    """``job``: Python source. ``paths`` go before the environment's own packages; ``stubs`` are
    packages that need a device or are not installed here, and are there in name only."""
    need_packages(job)
    job_env = {k: v for k, v in os.environ.items() if not k.startswith(("DFX_", "RANK", "WORLD"))}
    job_env |= {"DFX_DIR": os.environ["DFX_DIR"], "DFX_STUBS": ",".join(stubs)}
    job_env |= {"DFX_MAX_OVERHEAD": "0", "DFX_LEDGER_EVERY_STEP": "1", **dict(env or {})}
    job_env["PYTHONPATH"] = os.pathsep.join([*map(str, paths), str(HERE)])
    script = f"import observed_child\nobserved_child.begin()\n{job}\nobserved_child.end()\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=os.environ["DFX_DIR"],  # ROLL writes its logs where it is
        env=job_env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    result = json.loads(done.stdout.rpartition("OBSERVED ")[2])
    records = [Record(*row) for row in result["records"]]
    return Observed(records, result["identity"], result["num_errors"], done.stdout + done.stderr)
