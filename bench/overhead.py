"""What the guest costs the demo's training: by its own meter, and step time with and without it.

The second is the same trainer with the guest turned on and off in random order, a real agent
reading meanwhile. No budget: everything is recorded, but in the arm "reduced".
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
# prompts of a rank, samples of a prompt, steps: some 0.09, 0.3 and 2 s a step on 2 cores
SIZES = ((1, 4, 200), (6, 8, 80), (44, 8, 20))


def measure(*, quick: bool) -> list[Result]:
    sizes = SIZES[:1] if quick else SIZES
    rows = [_metered(*size) for size in sizes]
    for prompts_per_rank, group_size, _ in sizes[:2]:  # a round of the longest takes a minute
        rows += _on_off(prompts_per_rank, group_size, 0.0 if quick else 180.0)
    return rows


def _metered(prompts_per_rank: int, group_size: int, num_steps: int) -> Result:
    """The demo's own training, without a budget: everything is recorded."""
    options = ["--prompts-per-rank", str(prompts_per_rank), "--group-size", str(group_size)]
    options += ["--validate-every", "0", "--steps", str(num_steps)]
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        command = ["dfx_agent.commands.demo.tiny_grpo", *options]
        torchrun(NUM_RANKS, command, folder, DFX_MAX_OVERHEAD="0")
        return metered(f"{JOB}, {prompts_per_rank * group_size} samples:", folder, NUM_RANKS)


def _on_off(prompts_per_rank: int, group_size: int, seconds: float) -> list[Result]:
    options = ["--prompts-per-rank", str(prompts_per_rank), "--group-size", str(group_size)]
    with serving() as agent, tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        out = Path(folder, "rounds.json")
        command = ["bench.toggled_training", *options, "--seconds", str(seconds)]
        torchrun(NUM_RANKS, [*command, "--out", str(out)], agent.directory, DFX_MAX_OVERHEAD="0")
        job = f"{JOB}, {prompts_per_rank * group_size} samples,"
        return ratios(job, json.loads(out.read_text()))


if __name__ == "__main__":
    report(measure)
