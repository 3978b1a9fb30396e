"""Weights & Biases: ``run.log`` and ``wandb.log``, which is the same method bound at ``init``.

Both call ``_log`` of the class. It is patched, so that a late attach also covers the bound method.
Source: wandb 0.31.
"""

from __future__ import annotations

from types import ModuleType

from dfx_agent.shim.adapters import Parts, _tracker
from dfx_agent.shim.adapters._around import before, wrap
from dfx_agent.shim.patches import PatchSet

KIND = "tracker"


def _patch_run(patches: PatchSet, module: ModuleType) -> None:
    name = "_log" if hasattr(getattr(module, "Run", None), "_log") else "log"
    wrap(patches, module, f"Run.{name}", before(_tracker.read_log))


PARTS: Parts = {
    "log": ("wandb.sdk.wandb_run", _patch_run),
}
