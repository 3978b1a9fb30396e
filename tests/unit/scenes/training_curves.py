"""Signals of made-up training, sound and collapsed."""

from __future__ import annotations

import random

from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.snapshot import SignalRow, SignalState

HEALTHY = {
    "policy_kl": 2e-3,
    "grad_norm": 0.5,
    "entropy": 0.4,
    "response_length": 900.0,
}


def healthy(rng: random.Random) -> dict[str, float]:
    values = {name: level * rng.lognormvariate(0, 0.1) for name, level in HEALTHY.items()}
    return {**values, "reward": rng.gauss(0.6, 0.03), "truncation": rng.uniform(0, 0.03)}


def collapsed(rng: random.Random) -> dict[str, float]:
    values = healthy(rng)
    values["reward"] -= 0.5
    return {**values, "entropy": values["entropy"] * 8, "response_length": 20.0}


def trained(num_steps: int, seed: int = 0) -> tuple[SignalBank, random.Random]:
    bank, rng = SignalBank(), random.Random(seed)
    for step in range(num_steps):
        bank.observe(step, healthy(rng))
    return bank, rng


def signal(state: SignalState, name: str) -> SignalRow:
    return next(row for row in state.signals if row.signal == name)


def active(state: SignalState) -> dict[str, str]:
    return {row.symptom: row.direction for row in state.symptoms if row.is_active}
