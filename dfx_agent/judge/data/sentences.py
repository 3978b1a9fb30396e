"""Sentences about batches that change between the workers of a job."""

from dfx_agent.base.text import Sentence

MISMATCH = Sentence(
    "{where}: {difference}.",
    {
        "where": "Rank 0, step 12, reward to actor_update",
        "difference": "rewards belong to other samples",
    },
)
IN_MANY_STEPS = Sentence(
    "Many steps have the same difference: a filter, padding, or a fault since the start."
)
NOT_COMPARED = Sentence("No step has been compared yet.")
AGREE = Sentence(
    "Samples, ids, masks and lengths agree from {path}, without NaN or Inf.",
    {"path": "rollout to actor_update"},
)
