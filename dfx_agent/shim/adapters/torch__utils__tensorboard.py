"""torch's TensorBoard writer: ``add_scalar`` and ``add_scalars``."""

from __future__ import annotations

from dfx_agent.shim.adapters import _tracker

KIND = "tracker"
PARTS = {"writer": ("torch.utils.tensorboard.writer", _tracker.patch_summary_writer)}
