"""What the guest costs the demo's training: its own time per step, and step time with and without.

The first is the events of a real run times their cost measured here. The second is the same trainer
with the guest turned on and off in random order, a real agent reading meanwhile.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from bench.event_costs import EventCosts, event_costs, own_cost, steps_of_ranks
from bench.measurement import Result, report
from bench.rounds import ratios, torchrun
from bench.served_agent import serving

JOB = "demo"
NUM_RANKS = 2


def measure(*, quick: bool) -> list[Result]:
    torch.set_num_threads(1)
    costs = event_costs(quick=quick)
    small = ["--steps", "8", "--prompts-per-rank", "1"]
    own = _own_cost(costs, small if quick else ["--steps", "28"])
    return [own, *_on_off(0.0 if quick else 180.0)]


def _own_cost(costs: EventCosts, options: list[str]) -> Result:
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        torchrun(NUM_RANKS, ["dfx_agent.demo.tiny_grpo", *options], folder)
        return own_cost(JOB, steps_of_ranks(folder, NUM_RANKS), costs, f"{NUM_RANKS} ranks DDP")


def _on_off(seconds: float) -> list[Result]:
    with serving() as agent, tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        out = Path(folder, "rounds.json")
        command = ["bench.toggled_training", "--seconds", str(seconds), "--out", str(out)]
        torchrun(NUM_RANKS, command, agent.directory)
        return ratios(JOB, json.loads(out.read_text()))


if __name__ == "__main__":
    report(measure)
