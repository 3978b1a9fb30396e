"""What a process has more of once the guest is in: start time, resident memory, modules.

Each sample is a process of its own, one kind after the other: a bare interpreter that imports the
guest, one that imports ``logging`` as a yardstick, and a process with torch in which the guest
records and its hooks are in.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.measurement import Result, median_of, of_samples

ROOT = Path(__file__).resolve().parent.parent
GUEST, YARDSTICK, TORCH = "bare interpreter", "import logging", "with torch"
# what comes before and what is measured
_KINDS = {
    GUEST: ("", "import dfx_agent.shim"),
    YARDSTICK: ("", "import logging"),
    TORCH: ("import torch", "import dfx_agent.shim as dfx; dfx.init(run='bench'); dfx.set_step(1)"),
}
_CHILD = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
before = time.perf_counter_ns()
exec(sys.argv[2])
def now():
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return time.perf_counter_ns(), pages * os.sysconf("SC_PAGE_SIZE"), len(sys.modules)
then = now()
exec(sys.argv[3])
print([then[0] - before, *then[1:], *(b - a for a, b in zip(then, now()))])
"""


@dataclass(frozen=True)
class _Sample:
    """Before, and what was added."""

    ns_before: float
    bytes_before: float
    modules_before: float
    ns: float
    bytes: float
    modules: float


def footprint(*, quick: bool) -> list[Result]:
    samples = _interleaved(num_rounds=2 if quick else 40)
    bare, yardstick, torch = (samples[kind] for kind in (GUEST, YARDSTICK, TORCH))
    return [
        of_samples(
            "import of the guest, bare interpreter",
            [item.ns / 1e6 for item in bare],
            "ms",
            baseline=median_of("import logging", [item.ns / 1e6 for item in yardstick]),
        ),
        of_samples(
            "import of the guest, init and first step, with torch",
            [item.ns / 1e6 for item in torch],
            "ms",
            baseline=median_of("import torch", [item.ns_before / 1e6 for item in torch]),
            note="hooks are in",
        ),
        *(_memory(kind, samples[kind]) for kind in (GUEST, TORCH)),
        *(_modules(kind, samples[kind]) for kind in (GUEST, TORCH)),
    ]


def _memory(kind: str, samples: list[_Sample]) -> Result:
    before = median_of("the process without it", [item.bytes_before / 2**20 for item in samples])
    added = [item.bytes / 2**20 for item in samples]
    return of_samples(f"resident memory added by the guest, {kind}", added, "MiB", baseline=before)


def _modules(kind: str, samples: list[_Sample]) -> Result:
    before = median_of("the process without it", [item.modules_before for item in samples])
    added = [item.modules for item in samples]
    note = "tests/unit/shim/test_footprint.py names them" if kind == GUEST else ""
    return of_samples(
        f"modules loaded by the guest, {kind}", added, "modules", baseline=before, note=note
    )


def _interleaved(num_rounds: int) -> dict[str, list[_Sample]]:
    """The first round is warm-up."""
    samples: dict[str, list[_Sample]] = {kind: [] for kind in _KINDS}
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        env = {**os.environ, "DFX_DIR": folder, "OMP_NUM_THREADS": "1"}
        for number in range(num_rounds + 1):
            for kind in random.sample(list(_KINDS), len(_KINDS)):
                sample = _of_one_process(kind, env)
                if number:
                    samples[kind].append(sample)
    return samples


def _of_one_process(kind: str, env: dict[str, str]) -> _Sample:
    flags = [] if kind == TORCH else ["-I", "-S"]
    command = [sys.executable, *flags, "-c", _CHILD, str(ROOT), *_KINDS[kind]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return _Sample(*json.loads(done.stdout))
