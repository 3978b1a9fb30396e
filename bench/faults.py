"""Faults for healthy runs: ``fault(values, i)`` changes the row ``i`` steps after the onset.

``values`` is signal -> value, as the detector gets them. A missing value stays missing.
"""

from __future__ import annotations

from collections.abc import Callable

Fault = Callable[[dict[str, float], int], None]


def _scale(values: dict[str, float], name: str, factor: float) -> None:
    if name in values:
        values[name] *= factor


def _lose_reward(values: dict[str, float], share: float) -> None:
    if "reward" in values:
        values["reward"] -= share * max(0.5, abs(values["reward"]))


def _spike_kl(values: dict[str, float]) -> None:
    """To a size that a real divergence has, whatever the run had."""
    name = "ref_kl" if "ref_kl" in values else "policy_kl"
    values[name] = 30 * max(abs(values.get(name, 0.0)), 1e-2)


def _spike_gradient(values: dict[str, float]) -> None:
    """A step without a gradient (all groups solved) gets one too."""
    if "grad_norm" in values:
        values["grad_norm"] = 30 * max(values["grad_norm"], 1.0)


def _sync_spike(values: dict[str, float], i: int) -> None:
    if i < 2:
        _spike_kl(values)
        _spike_gradient(values)
        _scale(values, "entropy", 0.1)


def _staggered_spike(values: dict[str, float], i: int) -> None:
    if i < 2:
        _spike_kl(values)
    if 2 <= i < 4:
        _spike_gradient(values)
    if 4 <= i < 6:
        _scale(values, "entropy", 0.1)


def _length_collapse(values: dict[str, float], i: int) -> None:
    """Responses become a few words within 10 steps; the reward goes with them."""
    share = min(1.0, (i + 1) / 10)
    _scale(values, "response_length", 0.02**share)
    _lose_reward(values, share)


def _entropy_explosion(values: dict[str, float], i: int) -> None:
    share = min(1.0, (i + 1) / 10)
    _scale(values, "entropy", 20**share)
    _scale(values, "response_length", 2**share)
    _lose_reward(values, share)


def _slow_entropy_fall(values: dict[str, float], i: int) -> None:
    _scale(values, "entropy", 0.03 ** min(1.0, i / 60))


def _slow_length_growth(values: dict[str, float], i: int) -> None:
    _scale(values, "response_length", 3 ** min(1.0, i / 100))


def _blip(*names: str) -> Fault:
    def change(values: dict[str, float], i: int) -> None:
        if i == 0:
            for name in names:
                if name == "kl":
                    _spike_kl(values)
                elif name == "reward":
                    _lose_reward(values, 1.0)
                else:
                    _scale(values, name, 1000)

    return change


FAULTS: dict[str, Fault] = {
    "spike of KL, gradient, entropy (2 steps)": _sync_spike,
    "the same, 2 steps apart": _staggered_spike,
    "length collapse": _length_collapse,
    "entropy explosion": _entropy_explosion,
    "slow entropy fall to 3 % in 60 steps": _slow_entropy_fall,
    "slow length growth x3 in 100 steps": _slow_length_growth,
}
# so many rows after its onset a slow fault is complete
SLOW_ROWS = {
    "slow entropy fall to 3 % in 60 steps": 60,
    "slow length growth x3 in 100 steps": 100,
}
BLIPS: dict[str, Fault] = {
    "one-step gradient blip": _blip("grad_norm"),
    "one-step KL blip": _blip("kl"),
    "one-step KL and gradient blip": _blip("kl", "grad_norm"),
    "one-step reward blip": _blip("reward"),
}
