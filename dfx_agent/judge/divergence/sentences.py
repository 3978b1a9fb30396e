"""Sentences about training that diverges."""

from dfx_agent.base.text import Sentence

_SYMPTOMS = (
    "KL rose from 0.004 to 1.25 (since step 40), reward fell from 0.6 to 0.1 (since step 44)"
)
_CHANGE = "lower the learning rate or tighten the clip range"
_BACK = "Roll back to the {checkpoint}, then {change}."
DIVERGING = Sentence(
    "Training has been diverging since step {step}{between}: {symptoms}.",
    {"step": 40, "between": " (between steps 38 and 41)", "symptoms": _SYMPTOMS,
     "checkpoint": "checkpoint of step 30, the latest before the divergence", "change": _CHANGE},
    action=_BACK,
)  # fmt: skip
WAS_DIVERGING = Sentence(
    "Training was diverging since step {step}{between}: {symptoms}.",
    {"step": 40, "between": "", "symptoms": "loss was far off its baseline until step 44",
     "checkpoint": "latest checkpoint before step 40", "change": _CHANGE},
    action=_BACK,
)  # fmt: skip
NOT_LEARNING = Sentence(
    "Nothing has been learned since step {step}: gradients are zero and the reward stays at "
    "{reward}.",
    {"step": 1, "reward": "0"},
    action="Score one sample by hand with the reward function. While all samples of a group get "
    "the same reward, no update changes the policy.",
)
BROKEN = Sentence(
    "{place} has been {value} since step {step} on {ranks}.",
    {"place": "The loss", "value": "NaN", "step": 12, "ranks": "rank 1"},
)
NONFINITE_ONCE = Sentence(
    "{signals} {was} NaN or infinite at step {step}.",
    {"signals": "The gradient norm", "was": "was", "step": 12},
)
NONFINITE = Sentence(
    "{signals} {was} NaN or infinite, in {num_steps} of the last 5 steps, first at step {step}.",
    {"signals": "The loss and the KL", "was": "were", "num_steps": 2, "step": 12},
)
BROKEN_NEXT = Sentence("Then followed: {places}.", {"places": "the gradient norm (step 12)"})
UPDATES_SKIPPED = Sentence(
    "The gradient scaler of {ranks} has skipped the last {num_updates} updates: gradients are NaN "
    "or infinite at every scale. Nothing is learned.",
    {"ranks": "rank 1", "num_updates": 45},
)
NO_SIGNALS = Sentence(
    "No loss, gradient norm, reward, entropy or KL is reported, so divergence cannot be detected."
)
FEW_SIGNALS = Sentence(
    "Only {signals} {are} reported, so only NaN, Inf and explosions can be detected.",
    {"signals": "gradient norm and loss", "are": "are"},
)
TOO_EARLY = Sentence(
    "Too early to judge: after {num_steps} steps these signals have no baseline yet: {signals}.",
    {"num_steps": 7, "signals": "KL, reward"},
)
CALM = Sentence("No signal has left its baseline.")
FEW_MOVED = Sentence(
    "Too few signals have moved to call it divergence: {symptoms}.",
    {"symptoms": "KL rose (since step 40)"},
)
REWARD_IMPROVES = Sentence("The reward is improving.")
