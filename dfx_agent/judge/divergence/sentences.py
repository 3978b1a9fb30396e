"""Sentences about training that diverges."""

from dfx_agent.sentence import Sentence

_SYMPTOMS = "KL rose (since step 40), reward fell (since step 44)"
DIVERGING = Sentence(
    "Training has been diverging since step {step}: {symptoms}.",
    {"step": 40, "symptoms": _SYMPTOMS},
)
WAS_DIVERGING = Sentence(
    "Training was diverging since step {step}: {symptoms}.",
    {"step": 40, "symptoms": "loss was far off its baseline until step 44"},
)
CHECKPOINT = Sentence("The newest checkpoint before that is of step {step}.", {"step": 30})
BROKEN = Sentence(
    "{place} has been {value} since step {step} on {ranks}.",
    {"place": "The loss", "value": "NaN", "step": 12, "ranks": "rank 1"},
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
