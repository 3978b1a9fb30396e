"""Which family of signals left its range first: what that usually means, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dfx_agent.snapshot import CollapseRow, SignalState


class _Meaning(NamedTuple):
    """``cause`` is stable; ``change`` completes "roll back, then"."""

    cause: str
    change: str


# docs/runbook.md names the same; from the onsets of the collapses in shared/reference
_MEANINGS = {
    "mismatch": _Meaning(
        "mismatch KL first: rollout engine and trainer disagree (weights not synchronised, "
        "precision, another sampler)",
        "check the weight sync, and that rollout engine and trainer use the same precision and "
        "sampling",
    ),
    "divergence": _Meaning(
        "KL first: the policy moved too far in one update (learning rate, clip range)",
        "lower the learning rate or tighten the clip range",
    ),
    "grad_norm": _Meaning(
        "gradient norm first: a bad batch or too high a learning rate",
        "look at the batch of that step, and lower the learning rate or clip gradients",
    ),
    "entropy": _Meaning(
        "entropy first: the policy becomes noise or repeats itself (entropy bonus, learning rate)",
        "change the entropy bonus or lower the learning rate",
    ),
    "reward": _Meaning(
        "reward first: the reward function or the environment changed, or another signal is not "
        "reported",
        "check the reward function and the environment on samples of that step",
    ),
    "length": _Meaning(
        "response length first: truncation, or the format is being gamed",
        "read samples of that step, and check the response limit and the length reward",
    ),
}
_BLOW_UP = "{signal} first: it blew up (learning rate, loss scale, a bad batch)"
_BLOW_UP_CHANGE = "lower the learning rate, and check the loss scale and the batch of that step"


def cause(state: SignalState, collapses: Sequence[CollapseRow]) -> str:
    """Nothing ("") without an onset. ``collapses``: those that have lasted long enough to page."""
    first = _first(state, collapses)
    return first.cause if first else ""


def change(state: SignalState, collapses: Sequence[CollapseRow]) -> str:
    """What to change before the run goes on from an older checkpoint."""
    first = _first(state, collapses)
    return first.change if first else _MEANINGS["divergence"].change


def _first(state: SignalState, collapses: Sequence[CollapseRow]) -> _Meaning | None:
    """Of what began in the same step not the reward, which follows from the others."""
    onsets = [
        (row.onset_step, _MEANINGS[_named(state, row.symptom)])
        for row in state.symptoms
        if row.is_active and row.onset_step is not None and row.symptom in _MEANINGS
    ]
    families = {row.signal: row.symptom for row in state.signals}
    onsets += [
        (row.onset_step, _collapsed(row.signal, families))
        for row in collapses
        if row.onset_step is not None
    ]
    reward = _MEANINGS["reward"]
    return min(onsets, key=lambda each: (each[0], each[1] is reward))[1] if onsets else None


def _collapsed(signal: str, families: dict[str, str]) -> _Meaning:
    """By the family of the signal; a loss is in none, and what has no signal is about length."""
    family = families.get(signal, signal) if signal else "length"
    known = _MEANINGS.get(family)
    return known or _Meaning(_BLOW_UP.format(signal=signal), _BLOW_UP_CHANGE)


def _named(state: SignalState, symptom: str) -> str:
    """The family, or which KL it was where only the mismatch moved."""
    moved = {r.signal for r in state.signals if r.symptom == symptom and (r.z or 0.0) > 2}
    only_mismatch = symptom == "divergence" and moved
    return "mismatch" if only_mismatch and all("mismatch" in m for m in moved) else symptom
