"""Derives the role of a Ray actor from its class name, in the same way for guest and agent."""

from __future__ import annotations

# the first key that the lower-case class name contains decides
_ROLES = (
    ("actorrollout", "actor"), ("reference", "ref"), ("reward", "reward"), ("critic", "critic"),
    ("taskrunner", "driver"), ("rollout", "rollout"), ("vllm", "rollout"), ("sglang", "rollout"),
    ("inference", "rollout"), ("engine", "rollout"), ("policy", "actor"), ("actor", "actor"),
    ("learner", "learner"), ("collector", "collector"), ("orchestrator", "orchestrator"),
    ("trainworker", "trainer"),
)  # fmt: skip
_MAX_LENGTH = 32


def role_of_actor(class_name: str) -> str:
    """Return a role that dfx-agent knows, or the class name itself if none matches."""
    name = class_name.lower()
    return next((role for part, role in _ROLES if part in name), class_name[:_MAX_LENGTH])
