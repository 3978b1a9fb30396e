"""Unsloth: it replaces TRL's trainer classes by generated ones, which have functions of their own.

Source: unslothai/unsloth 015bdef. The generated ``UnslothGRPOTrainer`` has the names of TRL's
functions. ``import unsloth`` creates it. Metrics and the update are TRL's parts.
"""

from __future__ import annotations

import sys
from types import ModuleType

from dfx_agent.shim.adapters import Parts, Patch
from dfx_agent.shim.adapters.trl import patch_sampling
from dfx_agent.shim.patches import PatchSet


def _patch_trainer(stem: str, name: str) -> Patch:
    def patch(patches: PatchSet, _module: ModuleType) -> None:
        trainer = getattr(sys.modules.get(f"trl.trainer.{stem}"), name, None)
        if getattr(trainer, "__name__", "") == f"Unsloth{name}":
            patch_sampling(patches, trainer)

    return patch


PARTS: Parts = {
    "grpo": ("unsloth", _patch_trainer("grpo_trainer", "GRPOTrainer")),
    "rloo": ("unsloth", _patch_trainer("rloo_trainer", "RLOOTrainer")),
}
