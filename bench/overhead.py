"""What the guest costs the demo's training: by its own meter, and step time with and without it.

The second is the same trainer with the guest turned on and off in random order, a real agent
reading meanwhile. No budget: everything is recorded.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from bench.guest_meter import metered
from bench.measurement import Result, report
from bench.rounds import ratios, torchrun
from bench.served_agent import serving

JOB = "demo"
NUM_RANKS = 2


def measure(*, quick: bool) -> list[Result]:
    return [_metered("200" if quick else "400"), *_on_off(0.0 if quick else 180.0)]


def _metered(num_steps: str) -> Result:
    options = ["--prompts-per-rank", "1", "--group-size", "4", "--validate-every", "0"]
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        command = ["dfx_agent.demo.tiny_grpo", *options, "--steps", num_steps]
        torchrun(NUM_RANKS, command, folder, DFX_MAX_OVERHEAD="0")
        return metered(JOB, folder, NUM_RANKS)


def _on_off(seconds: float) -> list[Result]:
    with serving() as agent, tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        out = Path(folder, "rounds.json")
        command = ["bench.toggled_training", "--seconds", str(seconds), "--out", str(out)]
        torchrun(NUM_RANKS, command, agent.directory, DFX_MAX_OVERHEAD="0")
        return ratios(JOB, json.loads(out.read_text()))


if __name__ == "__main__":
    report(measure)
