"""The role of a Ray actor by its class: guest and agent must come to the same."""

from __future__ import annotations

# the first that is part of the name of the class, in lower case
_ROLES = (
    ("actorrollout", "actor"), ("reference", "ref"), ("reward", "reward"), ("critic", "critic"),
    ("taskrunner", "driver"), ("rollout", "rollout"), ("vllm", "rollout"), ("sglang", "rollout"),
    ("inference", "rollout"), ("engine", "rollout"), ("policy", "actor"), ("actor", "actor"),
    ("learner", "learner"), ("collector", "collector"), ("orchestrator", "orchestrator"),
    ("trainworker", "trainer"),
)  # fmt: skip
_MAX_LENGTH = 32


def role_of_actor(class_name: str) -> str:
    """A role that dfx-agent knows, else the name of the class."""
    name = class_name.lower()
    return next((role for part, role in _ROLES if part in name), class_name[:_MAX_LENGTH])
