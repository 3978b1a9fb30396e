"""tensorboardX: the same two methods as torch's writer."""  # noqa: N999 (the package's name)

from __future__ import annotations

from dfx_agent.shim.adapters import _tracker

KIND = "tracker"
PARTS = {"writer": ("tensorboardX.writer", _tracker.patch_summary_writer)}
