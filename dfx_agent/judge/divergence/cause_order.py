"""The likely cause of a divergence, by the family of signals that left its range first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dfx_agent.judge.divergence.collapse import REWARD, lasting
from dfx_agent.judge.divergence.symptoms import FAR_Z
from dfx_agent.snapshot import CollapseRow, OnsetRange, SignalState


class _Meaning(NamedTuple):
    """What it means if one family of signals moved first."""

    cause: str
    """Cause of the verdict. Users match on it, so it does not change."""
    change: str
    """What to change; completes the sentence "Roll back to the checkpoint, then …"."""


# docs/runbook.md names the same causes; they come from the onsets of recorded collapses
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
_KLS = frozenset({"mismatch", "divergence"})
_BLOW_UP = "{signal} first: it blew up (learning rate, loss scale, a bad batch)"
_BLOW_UP_CHANGE = "lower the learning rate, and check the loss scale and the batch of that step"


def cause(onset: OnsetRange) -> str:
    """The usual cause; "" if no signal moved."""
    return _meaning(onset.first).cause if onset.first else ""


def change(onset: OnsetRange) -> str:
    """What to change before the run continues from an older checkpoint."""
    return _meaning(onset.first or "divergence").change


def onset_of(state: SignalState) -> OnsetRange:
    """The step at which the divergence began, and the family that moved first.

    The onset is fixed when the alert begins. Before, it is the step that all signals together point
    to (``state.onset``), or the first step of a collapse by size if that is earlier.
    """
    found = state.onset
    if found is not None and found.first:
        return found
    collapses = lasting(state.collapses)
    sizes = [row.onset_step for row in collapses if row.onset_step is not None]
    first = _first(state, collapses)
    if found is not None and found.low_step <= min(sizes, default=found.low_step):
        return replace(found, first=first)
    active = (row.onset_step for row in state.symptoms if row.is_active)
    begun = [*sizes, *(step for step in active if step is not None)]
    step = min(begun, default=state.step)
    return OnsetRange(step, step, step, first)


def _meaning(first: str) -> _Meaning:
    """Meaning of a family, or of a loss, which belongs to no family."""
    meaning = _MEANINGS.get(first)
    return meaning or _Meaning(_BLOW_UP.format(signal=first), _BLOW_UP_CHANGE)


def _first(state: SignalState, collapses: Sequence[CollapseRow]) -> str:
    """What moved first. Not the reward if others moved in the same step: it follows them.

    Of several others a far KL, which is the step of the policy itself, else the farthest. If the
    reward fell in the same step, all are at their limits and distances say nothing: then the first
    in the order of the signals.
    """
    onsets = [
        (row.onset_step, _named(state, row.symptom))
        for row in state.symptoms
        if row.is_active and row.onset_step is not None and row.symptom in _MEANINGS
    ]
    families = {row.signal: row.symptom for row in state.signals}
    onsets += [
        (row.onset_step, _collapsed(row.signal, families))
        for row in collapses
        if row.onset_step is not None
    ]
    earliest = min((step for step, _ in onsets), default=None)
    names = [name for step, name in onsets if step == earliest]
    others = [name for name in names if name != REWARD]
    if len(others) < 2 or REWARD in names:
        return next(iter([*others, *names]), "")
    far = _distances(state)
    far_kls = [name for name in others if name in _KLS and far.get(name, 0.0) >= FAR_Z]
    return max(far_kls or others, key=lambda name: far.get(name, 0.0))


def _distances(state: SignalState) -> dict[str, float]:
    """Family, or signal without one -> distance of its farthest signal from the baseline."""
    far: dict[str, float] = {}
    for row in state.signals:
        family = row.symptom if row.symptom in _MEANINGS else row.signal
        for name in {family, _named(state, family)}:
            far[name] = max(far.get(name, 0.0), abs(row.z or 0.0))
    return far


def _collapsed(signal: str, families: dict[str, str]) -> str:
    """The family of a collapsed signal; the signal itself if it has none, as a loss."""
    family = families.get(signal, signal) if signal else "length"
    return family if family in _MEANINGS else signal


def _named(state: SignalState, symptom: str) -> str:
    """The family, or "mismatch" if only the mismatch KL moved."""
    moved = {row.signal for row in state.signals if row.symptom == symptom and (row.z or 0.0) > 2}
    only_mismatch = symptom == "divergence" and moved
    return "mismatch" if only_mismatch and all("mismatch" in name for name in moved) else symptom
