"""Lightning, imported as ``pytorch_lightning``."""

from __future__ import annotations

from dfx_agent.shim.adapters import lightning

KIND = "trainer"
PARTS = lightning.parts("pytorch_lightning")
