"""Which family of signals left its range first, and what that usually means."""

from __future__ import annotations

from dfx_agent.snapshot import SignalState

# docs/runbook.md names the same; from the onsets of the collapses in shared/reference
_MEANINGS = {
    "mismatch": "mismatch KL first: rollout engine and trainer disagree (weights not synchronised, "
    "precision, another sampler)",
    "divergence": "KL first: the policy moved too far in one update (learning rate, clip range)",
    "grad_norm": "gradient norm first: a bad batch or too high a learning rate",
    "entropy": "entropy first: the policy becomes noise or repeats itself (entropy bonus, learning "
    "rate)",
    "reward": "reward first: the reward function or the environment changed, or another signal "
    "is not reported",
    "length": "response length first: truncation, or the format is being gamed",
}
_BLOW_UP = "{signal} first: it blew up (learning rate, loss scale, a bad batch)"


def cause(state: SignalState) -> str:
    """Nothing ("") without an onset."""
    onsets = [
        (row.onset_step, _MEANINGS[_named(state, row.symptom)])
        for row in state.symptoms
        if row.is_active and row.onset_step is not None and row.symptom in _MEANINGS
    ]
    for row in state.collapses:
        if row.num_steps and row.onset_step is not None:
            blown = row.kind == "blow_up" and row.signal not in _MEANINGS
            known = _MEANINGS.get(row.signal, _MEANINGS["length"])
            said = _BLOW_UP.format(signal=row.signal) if blown else known
            onsets.append((row.onset_step, said))
    return min(onsets, key=lambda each: each[0])[1] if onsets else ""


def _named(state: SignalState, symptom: str) -> str:
    """The family, or which KL it was where only the mismatch moved."""
    moved = {r.signal for r in state.signals if r.symptom == symptom and (r.z or 0.0) > 2}
    only_mismatch = symptom == "divergence" and moved
    return "mismatch" if only_mismatch and all("mismatch" in m for m in moved) else symptom
